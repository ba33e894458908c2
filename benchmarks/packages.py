"""`packages`: what each cache saves for functions that import real packages (SOCK, Fig. 17 and 18).

Four ways to answer a request: nothing cached (resolve, download, install, import), install cache, import cache (a Zygote
holds the package), handler cache (a sandbox of the function is idle). A worker with the Zygote tree switched off and one with
it stand side by side.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness.client import Answer, BadAnswer, Client
from benchmarks.harness.cold import NeverLearned, cold_only, collector, learn
from benchmarks.harness.functions import IMPORTS, STANDARD_LIBRARY, Function
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run, in_turns, main
from benchmarks.harness.worker import Worker, running_worker

QUICK = ("requests", "numpy", "flask")
SOCKS = (*QUICK, "pandas", "django", "boto3", "pillow", "sqlalchemy", "scipy", "matplotlib")
"""Packages of SOCK's study, of which the least saved is judged: others take less to install and import."""
KEEP_ONE = {"sandbox": {"idle_limit": 1}}
"""A handler cache of one sandbox: calling a function twice hits it, calling two functions in turn misses it."""


def measure(run: Run) -> Result:
    result = Result("packages")
    functions = {**IMPORTS, STANDARD_LIBRARY.name: STANDARD_LIBRARY}
    names = run.pick(tuple(functions), QUICK)
    never: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        # uv's download cache starts empty, so that "no cache" means what it says.
        fresh = {"UV_CACHE_DIR": f"{scratch}/uv"}
        with (
            running_worker({**KEEP_ONE, "zygote": {"enabled": False}}, environment=fresh) as bare,
            running_worker({**KEEP_ONE, "zygote": {"spares": 0}}, environment=fresh) as tree,
        ):
            noop = Function("noop").write(Path(scratch))
            bare.deploy(noop, "noop")
            overhead_s = bare.deploy(noop, "noop-2")  # the first deploy of a worker takes longer
            tree.deploy(noop, "noop")
            for name in names:
                run.say(name)
                reason = measure_package(
                    run, bare, tree, functions[name].write(Path(scratch)), name, overhead_s, result
                )
                if reason:
                    never[name] = reason
    result.notes += [f"{name}: in no Zygote, {reason}" for name, reason in never.items()]
    judge(tuple(name for name in names if name not in never), result)
    return result


def measure_package(
    run: Run, bare: Worker, tree: Worker, directory: Path, name: str, overhead_s: float, result: Result
) -> str:
    """The rows of one package; why no Zygote may hold it, if so. `overhead_s` is what deploying a function without packages
    takes."""
    reason = ""
    deploy_ms = (bare.deploy(directory, name) - overhead_s) * 1000
    tree.deploy(directory, name)
    with Client(bare.host, bare.port) as client:
        first = cold_only(client.invoke(name))
    if name != STANDARD_LIBRARY.name:
        result.add(f"{name}, no cache", "latency", "ms", [deploy_ms + first.ms])
    try:
        learn(tree, name, name, between="noop")
    except NeverLearned as error:
        reason = str(error)
    noops: list[float] = []
    with Client(bare.host, bare.port) as bare_client, Client(tree.host, tree.port) as tree_client:
        batches: dict[str, Callable[[], list[float]]] = {
            f"{name}, install cache": lambda: cold_batch(bare_client, name),
            f"{name}, import cache": lambda: cold_batch(tree_client, name),
            f"{name}, handler cache": lambda: warm_batch(tree_client, name),
        }
        samples: dict[str, list[float]] = {case: [] for case in batches}
        turns = {case: collector(samples[case], batch) for case, batch in batches.items()}
        in_turns(
            {**turns, "no-op": collector(noops, lambda: cold_batch(tree_client, "noop", between=name))}, run.pick(15, 6)
        )
    for case, times in samples.items():
        result.add(case, "latency", "ms", times)
    result.add(f"{name}, no-op in the same turns", "latency", "ms", noops)
    return reason


def cold_batch(client: Client, name: str, *, between: str = "noop", size: int = 3) -> list[float]:
    """Cold starts of a function, each after another function has taken its place in the handler cache."""
    times = []
    for _ in range(size):
        client.invoke(between)
        times.append(cold_only(client.invoke(name)).ms)
    return times


def warm_batch(client: Client, name: str, *, size: int = 5) -> list[float]:
    """Requests to an idle sandbox, after one that made it."""
    client.invoke(name)
    return [warm_only(client.invoke(name)).ms for _ in range(size)]


def warm_only(answer: Answer) -> Answer:
    """The answer. Raises BadAnswer when a sandbox had to be made for it."""
    if answer.cold:
        raise BadAnswer("a cold answer where every one must be warm")
    return answer


def judge(names: tuple[str, ...], result: Result) -> None:
    def p50(name: str, case: str) -> float:
        return result.row(f"{name}, {case}", "latency").p50

    def gained(name: str) -> float:
        return p50(name, "no cache") / p50(name, "import cache")

    slowdown = {name: p50(name, "import cache") / p50(name, "no-op in the same turns") for name in names}
    gain = {name: gained(name) for name in names if name in SOCKS}
    worst, least = max(slowdown, key=slowdown.__getitem__), min(gain, key=gain.__getitem__)
    result.aim(f"import cache, times the no-op's cold start (worst: {worst})", slowdown[worst], "<= 2")
    result.aim(f"no cache, times the import cache (least: {least})", gain[least], ">= 45")
    for name in names:
        saved = "" if name == STANDARD_LIBRARY.name else f"no cache / import cache = {gained(name):.0f}x, "
        result.notes.append(f"{name}: {saved}import cache / no-op = {slowdown[name]:.2f}x")


if __name__ == "__main__":
    sys.exit(main("packages", measure, "Cold starts with real packages under each cache."))
