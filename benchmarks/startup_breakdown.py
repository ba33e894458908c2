"""`startup_breakdown`: what each of the kernel's facilities adds to a start, after Jain et al., "Fast Function Instantiation".

Their Figs. 6 and 7 break the start of a container down. Here crun and runc start containers with all facilities and with one
left out: the difference is what that facility costs. gVisor, Podman and Docker, where they are installed, are measured as a
whole. sockd tells the phases of its own starts, the floor its steps. What is compared is measured in turns.
"""

from __future__ import annotations

import itertools
import math
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness.client import closed_loop, request
from benchmarks.harness.cold import cold_config, cold_only
from benchmarks.harness.functions import Function
from benchmarks.harness.results import Result, median
from benchmarks.harness.run import Run, in_turns, main
from benchmarks.harness.worker import running_worker
from benchmarks.peers.peer_driver import FACILITIES, USUAL
from benchmarks.peers.starters import HERE, PYTHON, Starter, floor

RUNTIMES = ("crun", "runc")
WHOLES = {"runsc": "gVisor", "podman": "Podman", "docker": "Docker"}
"""Programs that are measured with all facilities alone, and their names."""
AT_ONCE = (1, 10, 50, 100)
ALL = "all facilities"
WHOLE, REST = "whole", "rest"
NOT_HERE = (
    "unikernels (Jain, Figs. 3 to 5) and CNI plug-ins (Figs. 8, 9): not measurable here, without a guest kernel and Kubernetes",
    "costs are differences within a round, so noise may make one negative",
    "mount: not left out, because a container needs its mounts; user: a container of its own, as most run without it",
)


def measure(run: Run) -> Result:
    result = Result("startup_breakdown", notes=list(NOT_HERE))
    counts = run.pick(AT_ONCE, (1, 10))
    measure_sockd(run, counts, result)
    measure_floor(run, result)
    for name in RUNTIMES:
        if shutil.which(name):
            measure_runtime(run, name, counts, result)
        else:
            result.notes.append(f"{name}: not installed")
    measure_wholes(run, counts, result)
    return result


def measure_sockd(run: Run, counts: tuple[int, ...], result: Result) -> None:
    """The phases of `Server-Timing`, and what the client saw beyond them."""
    with tempfile.TemporaryDirectory() as scratch, running_worker(cold_config(spares=0)) as forking:
        settings = {"memory_mb": 64, "concurrency": 200}
        forking.deploy(Function("noop", settings=settings).write(Path(scratch)), "noop")
        for count in counts:
            run.say(f"sockd, {count} at once")
            phases: dict[str, list[float]] = defaultdict(list)
            for _ in range(run.pick(20, 5)):
                asked = itertools.repeat(request("noop"), count)
                for answer in closed_loop(forking.host, forking.port, count, asked):
                    seen = cold_only(answer).phases_ms()
                    seen["http"] = answer.ms - sum(seen.values())
                    for phase, ms in seen.items():
                        phases[phase].append(ms)
                    phases[WHOLE].append(answer.ms)
            for phase, times in phases.items():
                result.add(f"sockd: {phase}", start(count), "ms", times)
            parts = {phase: median(times) for phase, times in phases.items() if phase != WHOLE}
            result.stacks[f"sockd, {count} at once"] = parts


def measure_floor(run: Run, result: Result) -> None:
    """The steps of the kernel's own cost, one start at a time."""
    run.say("the floor")
    with floor() as kernel:
        samples = [kernel.ask("start") for _ in range(run.pick(300, 100))]
    steps = {step: [sample[step] / 1e6 for sample in samples] for step in samples[0]}
    for step, times in steps.items():
        result.add(f"floor: {step}", start(1), "ms", times)
    result.stacks["floor"] = {step: median(times) for step, times in steps.items() if step != WHOLE}


def measure_runtime(run: Run, name: str, counts: tuple[int, ...], result: Result) -> None:
    """With all facilities, without each, and with a user namespace besides."""
    usual = [each for each in FACILITIES if each != "user"]
    cases = {ALL: usual, **{f"without {left}": [each for each in usual if each != left] for left in usual}}
    cases["with user"] = list(FACILITIES)
    with ExitStack() as stack:
        found = {case: launched(stack, name, facilities) for case, facilities in cases.items()}
        starters = those_that_run(name, found, result)
        for count in counts:
            run.say(f"{name}, {count} at once: {', '.join(starters)}")
            measure_costs(run, name, starters, count, result)


def measure_wholes(run: Run, counts: tuple[int, ...], result: Result) -> None:
    """What makes more than a container: with all that it does."""
    with ExitStack() as stack:
        found = {word: launched(stack, name) for name, word in WHOLES.items() if shutil.which(name)}
        result.notes += [f"{word}: not installed" for word in WHOLES.values() if word not in found]
        starters = those_that_run("", found, result)
        for count in counts if starters else ():
            run.say(f"{', '.join(starters)}, {count} at once")
            measure_bursts(run, {f"{word}, {ALL}": starter for word, starter in starters.items()}, count, result)


def launched(stack: ExitStack, name: str, facilities: Sequence[str] = USUAL) -> Starter:
    """A peer's driver, closed by the stack."""
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix=f"sockd-{name}-"))
    command = (PYTHON, "-I", str(HERE / "peer_driver.py"), name, directory, ",".join(facilities))
    return stack.enter_context(Starter.launch(name, *command))


def those_that_run(name: str, found: dict[str, Starter], result: Result) -> dict[str, Starter]:
    """By case, those of which one starts; the others are noted with their error."""
    starters = {}
    for case, starter in found.items():
        answer = starter.ask("check")
        if "error" in answer:
            where = f"{name}, {case}" if name else case
            result.notes.append(f"{where}: {answer['error'].splitlines()[-1][:120]}")
        else:
            starters[case] = starter
    return starters


def measure_bursts(run: Run, starters: dict[str, Starter], count: int, result: Result) -> dict[str, list[float]]:
    """Starts at once, in turns; the median of each turn by case."""
    times: dict[str, list[float]] = {case: [] for case in starters}
    rounds = run.pick(20 if count == 1 else 5, 5 if count == 1 else 2)

    def burst(case: str) -> float:
        ms: list[float] = starters[case].ask(f"burst {count}")["ms"]
        times[case] += ms
        return median(ms) if ms else math.nan

    turns = in_turns({case: (lambda case=case: burst(case)) for case in starters}, rounds)  # type: ignore[misc]
    for case, seen in times.items():
        if seen:
            result.add(case, start(count), "ms", seen)
        if failed := count * rounds - len(seen):
            result.notes.append(f"{case}: {failed} of {count * rounds} failed, {count} at once")
    return turns


def measure_costs(run: Run, name: str, starters: dict[str, Starter], count: int, result: Result) -> None:
    """What each facility of a runtime costs: the difference that leaving it out makes."""
    named = measure_bursts(run, {f"{name}, {case}": starter for case, starter in starters.items()}, count, result)
    turns = {case: named[f"{name}, {case}"] for case in starters}
    if ALL not in turns:
        return
    parts: dict[str, float] = {}
    for case, medians in turns.items():
        if case != ALL:
            sign, facility = 1 if case.startswith("without") else -1, case.split()[-1]
            costs = [sign * (whole - other) for whole, other in zip(turns[ALL], medians, strict=True)]
            result.add(f"{name}: {facility}", f"cost of a facility, {count} at once", "ms", costs, tail=False)
            if sign > 0:
                parts[facility] = max(0.0, median(costs))
    result.stacks[f"{name}, {count} at once"] = {**parts, REST: max(0.0, median(turns[ALL]) - sum(parts.values()))}


def start(count: int) -> str:
    return f"start, {count} at once"


if __name__ == "__main__":
    sys.exit(main("startup_breakdown", measure, "Where the time of a start goes, facility by facility (Jain et al.)."))
