"""`primitives`: the kernel's floor from Python. Each step of making one confined sandbox, the whole, the whole after idleness.

The whole (case "floor") is the yardstick of `cold_start`: clone3 with our namespaces from a minimal interpreter, a detached
root, a cgroup join, all privileges dropped, "ready". No HTTP, no daemon, no user code.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from benchmarks.harness.results import Result
from benchmarks.harness.run import Run, in_turns, main
from benchmarks.peers.starters import Starter, floor, peers

IDLE_GAP_S = 0.1
FAST_JOIN_MS = 1.0


def measure(run: Run) -> Result:
    """The floor, and the peers in the same turns."""
    result = Result("primitives")
    with floor() as kernel, peers() as others:
        # The idle case first: starting in a loop may leave the kernel's cgroup path warm for a while.
        measure_idle(run, kernel, result)
        measure_steps(run, kernel, result)
        starters = {"floor": kernel, **others}
        measure_starts(run, starters, result)
        measure_rates(run, starters, result)
    return result


def measure_idle(run: Run, kernel: Starter, result: Result) -> None:
    """One start every 100 ms: what a sporadic request pays."""
    run.say("starts 100 ms apart")
    joins, wholes = [], []
    for _ in range(run.pick(100, 40)):
        time.sleep(IDLE_GAP_S)
        steps = kernel.ask("start")
        joins.append(steps["join cgroups"] / 1e6)
        wholes.append(sum(steps.values()) / 1e6)
    result.add("floor, 100 ms idle before", "start", "ms", wholes)
    join = result.add("step: join cgroups, 100 ms idle before", "start", "ms", joins)
    if join.p50 > FAST_JOIN_MS:
        result.notes.append(
            "joining a cgroup after idleness waits for an RCU grace period here: favordynmods is not in effect on this kernel yet"
        )


def measure_steps(run: Run, kernel: Starter, result: Result) -> None:
    """Where the time of one start goes, back to back."""
    run.say("steps of one start")
    for _ in range(20):
        kernel.ask("start")
    samples = [kernel.ask("start") for _ in range(run.pick(1000, 300))]
    for step in samples[0]:
        result.add(f"step: {step}", "start", "ms", [sample[step] / 1e6 for sample in samples])


def measure_starts(run: Run, starters: dict[str, Starter], result: Result) -> None:
    """The whole at concurrency 1, back to back; peers run `python3 -I -S -c pass` to its end."""
    run.say(f"whole starts: {', '.join(starters)}")
    many = floor_batch(starters["floor"])
    cases: dict[str, Callable[[], float]] = {
        name: starter.start_ms for name, starter in starters.items() if name != "floor"
    }
    floors: list[float] = []

    def one_batch() -> float:
        floors.extend(many())
        return floors[-1]

    for name, samples in in_turns({"floor": one_batch, **cases}, run.pick(60, 25)).items():
        result.add(name, "start", "ms", floors if name == "floor" else samples)


def floor_batch(kernel: Starter, size: int = 10) -> Callable[[], list[float]]:
    """Ten starts back to back after one that is not counted: the turn of a slow peer leaves caches cold."""

    def batch() -> list[float]:
        kernel.start_ms()
        return [kernel.start_ms() for _ in range(size)]

    return batch


def measure_rates(run: Run, starters: dict[str, Starter], result: Result) -> None:
    """Starts per second with ten in flight, and for the floor also one."""
    run.say("rates at concurrency 10")
    sizes = {
        "floor": run.pick(1000, 400),
        "python": run.pick(200, 80),
        "bwrap": run.pick(150, 60),
        "crun": run.pick(100, 40),
        "runc": run.pick(50, 20),
    }
    cases: dict[str, Callable[[], float]] = {
        name: (lambda starter=starter, size=sizes[name]: starter.rate(10, size))  # type: ignore[misc]
        for name, starter in starters.items()
    }
    for name, samples in in_turns(cases, run.pick(5, 3)).items():
        result.add(name, "rate, 10 at once", "1/s", samples, tail=False)
    result.add("floor", "rate, 1 at once", "1/s", [starters["floor"].rate(1, 300) for _ in range(3)], tail=False)


if __name__ == "__main__":
    sys.exit(main("primitives", measure, "The kernel's floor of a cold start, from Python."))
