"""`zygote_tree`: hit rates, latency and memory of the import cache under each policy, over Zipf traces (SOCK, Fig. 20).

Two parts. Simulated (`zygote_tree_model`): the worker's policies play traces of 100 to 10 000 functions. Real: two workers,
one per policy of the configuration, answer the same smaller trace in turns.
"""

from __future__ import annotations

import random
import sys
import tempfile
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.harness.client import Answer, Client
from benchmarks.harness.functions import IMPORTS, NOOP, Function
from benchmarks.harness.results import Result, quantile
from benchmarks.harness.run import Run, main
from benchmarks.harness.worker import Worker, running_worker
from benchmarks.zygote_tree_model import add_simulated

REAL = ("sock", "measured")
REAL_PACKAGES = ("requests", "flask", "numpy", "pillow", "sqlalchemy", "boto3")
QUICK_PACKAGES = ("requests", "flask")
MB = 1 << 20


def measure(run: Run) -> Result:
    result = Result("zygote_tree")
    add_simulated(run, result)
    measure_real(run, result)
    return result


def measure_real(run: Run, result: Result) -> None:
    """The same trace against one worker per policy, request by request in turns."""
    functions = real_functions(run.pick(30, 8), run.pick(REAL_PACKAGES, QUICK_PACKAGES))
    calls = zipf(len(functions), run.pick(1000, 200))
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directories = [function.write(scratch) for function in functions]
        workers = {policy: stack.enter_context(running_worker(real_config(policy))) for policy in REAL}
        for policy, worker in workers.items():
            run.say(f"deploying {len(functions)} functions to the worker with policy {policy}")
            for function, directory in zip(functions, directories, strict=True):
                worker.deploy(directory, function.name)
        run.say(f"{len(calls)} requests")
        answers = play(workers, [functions[call].name for call in calls])
        for policy, worker in workers.items():
            add_answers(f"real, {len(functions)} functions, {policy}", answers[policy], worker, result)


def real_config(policy: str) -> dict[str, dict[str, Any]]:
    """Caches too small for the trace, so that the policy matters."""
    return {"sandbox": {"idle_limit": 4}, "zygote": {"policy": policy, "memory_mb": 96, "spares": 0}}


def real_functions(count: int, packages: tuple[str, ...]) -> list[Function]:
    """Functions that import one or two of the packages."""
    rng = random.Random(1)
    functions = []
    for number in range(count):
        chosen = [IMPORTS[name] for name in rng.sample(packages, rng.choice((1, 1, 2)))]
        code = "\n".join(function.code.removesuffix(NOOP) for function in chosen) + NOOP
        requirements = tuple(requirement for function in chosen for requirement in function.requirements)
        functions.append(Function(f"f{number}", code, requirements, chosen[0].settings))
    return functions


def zipf(functions: int, calls: int) -> list[int]:
    """Which function each request calls: popularity 1/rank, as in SOCK's traces."""
    cumulative = list(accumulate(1 / rank for rank in range(1, functions + 1)))
    return random.Random(1).choices(range(functions), cum_weights=cumulative, k=calls)


def play(workers: dict[str, Worker], names: list[str]) -> dict[str, list[Answer]]:
    """Every request to every worker in turns; the order of the workers alternates."""
    answers: dict[str, list[Answer]] = {policy: [] for policy in workers}
    with ExitStack() as stack:
        clients = {policy: stack.enter_context(Client(worker.host, worker.port)) for policy, worker in workers.items()}
        for turn, name in enumerate(names):
            for policy in sorted(clients, reverse=bool(turn % 2)):
                answers[policy].append(clients[policy].invoke(name))
    return answers


def add_answers(case: str, answers: list[Answer], worker: Worker, result: Result) -> None:
    cold = [answer.ms for answer in answers if answer.cold]
    ordered = sorted(answer.ms for answer in answers)
    result.series[case] = [quantile(ordered, percent / 100) for percent in range(101)]
    result.add(case, "latency", "ms", [answer.ms for answer in answers])
    result.add(case, "cold latency", "ms", cold)
    result.add(case, "mean latency", "ms", [sum(answer.ms for answer in answers) / len(answers)], tail=False)
    result.add(case, "answered: warm", "%", [100 - 100 * len(cold) / len(answers)], tail=False)
    add_import_hits(case, worker.json("status")["caches"]["import"], result)
    memory = sum(node.get("unique_memory_bytes", 0) for node in nodes(worker.json("tree")["root"]))
    result.add(case, "memory of Zygotes, at the end", "MB", [memory / MB], tail=False)


def add_import_hits(case: str, hits: dict[str, int], result: Result) -> None:
    """How many cold starts had all their packages from a Zygote; and by SOCK's rule, if each that was passed over had them."""
    cold = max(hits["full"] + hits["partial"] + hits["missed"], 1)
    by_subset = hits["full"] + hits["passed_over"]
    result.add(case, "cold starts with all packages ahead", "%", [100 * hits["full"] / cold], tail=False)
    result.add(case, "the same by SOCK's rule, at most", "%", [100 * by_subset / cold], tail=False)
    result.aim(f"{case}: all packages ahead, sound rule / SOCK's rule", hits["full"] / max(by_subset, 1), ">= 0.9")


def nodes(node: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A node of `sockd tree --json` and all below it."""
    if node is None:
        return []
    return [node, *(below for child in node.get("children", ()) for below in nodes(child))]


if __name__ == "__main__":
    sys.exit(main("zygote_tree", measure, "The import cache under each policy, simulated and real."))
