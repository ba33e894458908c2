"""`density`: what an idle sandbox costs in memory, and what a thousand of them cost a cold start (SOCK, Fig. 19)."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness.client import BadAnswer, Client, checked, closed_loop, request
from benchmarks.harness.cold import collector, learn
from benchmarks.harness.functions import Function
from benchmarks.harness.memory import sandbox_pids, smaps_rollup_mb
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run, in_turns, main
from benchmarks.harness.worker import Config, Worker, running_worker

# Reservations are made for limits, not for use; a host that holds thousands of idle sandboxes is overcommitted on purpose.
ROOMY: dict[str, object] = {"memory_mb": 1 << 20, "idle_limit": 10000}
CODE = "{imports}\nimport time\n\n\ndef handler(event, context):\n    time.sleep(event.get('hold_s', 0))\n    return {{}}\n"
HOLD_MARGIN_S = 2.0
SLOWEST_RATE = 150
"""Cold starts per second that may be relied on when many requests are held at once."""
SETTLE_S = 1.0
"""After the last answer: longer than the pause interval, so that every sandbox is paused."""
SPACING_S = 0.03
SPARES = 16
PROBE_HOLD_S = 1.5


def measure(run: Run) -> Result:
    result = Result("density")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        crowded, empty = stack.enter_context(running_worker(config())), stack.enter_context(running_worker(config()))
        count = run.pick(1000, 300)
        deploy(crowded, empty, scratch, count)
        run.say(f"{count} idle sandboxes")
        measure_memory(crowded, "noop", "no-op, forked from the root Zygote", count, result)
        measure_crowd(run, crowded, empty, count, result)
    measure_spares(run, result)
    with tempfile.TemporaryDirectory() as scratch_name:
        for package in run.pick(("numpy", "pandas"), ("requests",)):
            measure_import_cache(run, package, Path(scratch_name), result)
    result.aim(
        "memory per idle no-op sandbox, MB",
        result.row("no-op, forked from the root Zygote", "MemAvailable").p50,
        "<= 2.5",
    )
    alone, among = (
        result.row("cold start, no other sandbox", "latency"),
        result.row(f"cold start, {count} paused", "latency"),
    )
    result.aim(f"cold p50 with {count} paused sandboxes, times empty", among.p50 / alone.p50, "<= 1.5")
    return result


def config(*, enabled: bool = True) -> Config:
    return {"sandbox": ROOMY, "zygote": {"enabled": enabled, "spares": 0}}


def holding(
    name: str, imports: str = "", requirements: tuple[str, ...] = (), *, concurrency: int, memory_mb: int
) -> Function:
    """A function that can be asked to hold its sandbox, so that each request in flight needs one of its own."""
    settings = {"memory_mb": memory_mb, "timeout_s": 60, "init_timeout_s": 60, "concurrency": concurrency}
    return Function(name, CODE.format(imports=imports), requirements, settings)


def deploy(crowded: Worker, empty: Worker, scratch: Path, count: int) -> None:
    crowded.deploy(holding("noop", concurrency=count, memory_mb=32).write(scratch), "noop")
    probe = holding("probe", concurrency=1000, memory_mb=32).write(scratch)
    for target in (crowded, empty):
        target.deploy(probe, "probe")


def fill(target: Worker, name: str, count: int) -> None:
    """Leave `count` idle sandboxes of one function. Raises BadAnswer when some were shared."""
    hold_s = count / SLOWEST_RATE + HOLD_MARGIN_S
    requests = [request(name, b'{"hold_s": %g}' % hold_s)] * count
    sandboxes = {answer.headers["x-sockd-sandbox"] for answer in closed_loop(target.host, target.port, count, requests)}
    if len(sandboxes) != count:
        raise BadAnswer(f"{count} requests at once were served by {len(sandboxes)} sandboxes")
    time.sleep(SETTLE_S)


def measure_memory(target: Worker, name: str, case: str, count: int, result: Result) -> None:
    """Fill the worker; memory per sandbox as the host and as each process sees it, in MB."""
    with Client(target.host, target.port) as client:
        client.invoke(name)
    time.sleep(SETTLE_S)
    before, present = available_mb(), set(sandbox_pids(target))
    fill(target, name, count)
    new = sorted(set(sandbox_pids(target)) - present)
    result.add(case, "MemAvailable", "MB", [(before - available_mb()) / max(1, len(new))], tail=False)
    sample = random.Random(0).sample(new, min(100, len(new)))
    rollups = [smaps_rollup_mb(pid) for pid in sample]
    result.add(case, "PSS", "MB", [rollup["Pss"] for rollup in rollups])
    result.add(case, "unique", "MB", [rollup["Private_Clean"] + rollup["Private_Dirty"] for rollup in rollups])


def measure_spares(run: Run, result: Result) -> None:
    """What a spare takes: each Zygote keeps `zygote.least_spares` of them, one by default."""
    run.say(f"{SPARES} spares")
    with running_worker({"zygote": {"spares": SPARES, "least_spares": SPARES}}) as worker:
        while worker.json("status")["sandboxes"]["spare"] < SPARES:
            time.sleep(SETTLE_S)
        siblings: dict[int, list[int]] = defaultdict(list)
        for pid in sandbox_pids(worker):
            siblings[int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])].append(pid)
        rollups = [smaps_rollup_mb(pid) for pid in max(siblings.values(), key=len)]
    result.add("a spare of the root Zygote", "PSS", "MB", [rollup["Pss"] for rollup in rollups])
    unique = [rollup["Private_Clean"] + rollup["Private_Dirty"] for rollup in rollups]
    result.aim("memory of a spare, MB", result.add("a spare of the root Zygote", "unique", "MB", unique).p50, "<= 2.5")


def available_mb() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/meminfo without MemAvailable")


def measure_crowd(run: Run, crowded: Worker, empty: Worker, count: int, result: Result) -> None:
    """Cold starts beside the paused sandboxes, in turns with a worker that has none."""
    run.say("cold starts beside them")
    cases: dict[str, Callable[[], list[float]]] = {
        "cold start, no other sandbox": lambda: spaced_cold_starts(empty, "probe", 10),
        f"cold start, {count} paused": lambda: spaced_cold_starts(crowded, "probe", 10),
    }
    samples: dict[str, list[float]] = {case: [] for case in cases}
    for turn in range(run.pick(8, 2)):
        # Every turn uses a version of its own: the last turn's sandboxes would answer warm.
        redeploy_probe(crowded, empty, turn)
        in_turns({case: collector(samples[case], batch) for case, batch in cases.items()}, 1)
    for case, times in samples.items():
        result.add(case, "latency", "ms", times)


def redeploy_probe(crowded: Worker, empty: Worker, turn: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        directory = holding("probe", f"# turn {turn}", concurrency=1000, memory_mb=32).write(Path(scratch))
        for target in (crowded, empty):
            target.deploy(directory, "probe")


def spaced_cold_starts(target: Worker, name: str, count: int) -> list[float]:
    """ms of cold starts 30 ms apart, all held at once so that each needs a sandbox; the holding itself is taken off."""
    data = request(name, b'{"hold_s": %g}' % PROBE_HOLD_S)
    clients = [Client(target.host, target.port) for _ in range(count)]
    try:
        for client in clients:
            client.send(data)
            time.sleep(SPACING_S)
        times = []
        for client in clients:  # answers come in the order of the requests, 30 ms apart
            while (answer := client.receive()) is None:
                pass
            times.append(checked(answer).ms - answer.phases_ms()["exec"])
        return times
    finally:
        for client in clients:
            client.socket.close()


def measure_import_cache(run: Run, package: str, scratch: Path, result: Result) -> None:
    """Memory per idle sandbox of a function that imports `package`, with and without a Zygote holding it."""
    run.say(f"idle sandboxes with {package}")
    count = run.pick(60, 20)
    function = holding(package, f"import {package}", (package,), concurrency=count, memory_mb=512)
    directory = function.write(scratch)
    for enabled, label in ((True, "with import cache"), (False, "without import cache")):
        with running_worker(config(enabled=enabled)) as target:
            target.deploy(directory, package)
            if enabled:
                learn_by_versions(target, directory, package)
            measure_memory(target, package, f"{package}, {label}", count, result)


def learn_by_versions(target: Worker, directory: Path, package: str) -> None:
    """Teach the tree, then deploy once more so that no sandbox made before the Zygote is reused."""
    learn(target, package, package)
    (directory / "version.txt").write_text("after learning\n")
    target.deploy(directory, package)


if __name__ == "__main__":
    sys.exit(main("density", measure, "Memory per idle sandbox, and cold starts beside a thousand of them."))
