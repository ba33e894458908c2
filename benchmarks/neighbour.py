"""`neighbour`: what a well-behaved function's callers notice while others ask for too much.

One client calls a warm function again and again, 2 ms apart. In turns, nobody else asks; somebody attacks the worker
(`attackers.py`); and, where it can, the same attacker attacks another server on the same machine, which shows what of the
difference is the machine's; both ratios are reported. Attackers use only processor time that nobody else wants, as they would be
on other machines; how much they offered in it is reported as well. That they are not, and take turns on the processors, is itself
noticed: by how much, tell as many loops as there are processors, which compute and ask nobody for anything.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.client import Client
from benchmarks.harness.functions import ECHO, Function
from benchmarks.harness.results import Result, Row
from benchmarks.harness.run import Run, main
from benchmarks.harness.spare_time import SpareTime, spare_time
from benchmarks.harness.worker import REPOSITORY, running_worker
from benchmarks.warm import in_process_server

GAP_S = 0.002
WINDOW_CALLS = 150
SETTLING_CALLS = 30
"""Behind an attack, and not counted: a thousand connections that end are its doing, not the next window's."""
ATTACKS = {"burst": 1000, "flood": 10_000, "slow": 50, "large": 4}
WORDS = {
    "burst": "bursts of 1000 requests",
    "flood": "floods of 10 000 connections",
    "slow": "50 slow clients",
    "large": "4 bodies of 7 MB at a time",
}
UNITS = {"burst": "requests/s", "flood": "connections/s", "slow": "bytes/s", "large": "MB/s"}
"""The unit of what an attack offers."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int


def measure(run: Run) -> Result:
    result = Result("neighbour")
    with (
        running_worker() as worker,
        in_process_server() as other,
        tempfile.TemporaryDirectory() as scratch,
        Client(worker.host, worker.port) as client,
        spare_time() as spare,
    ):
        result.notes.append(f"attackers run in {spare.words}")
        worker.deploy(Function("neighbour", ECHO).write(Path(scratch)), "neighbour")
        settings = {"concurrency": 8, "queue_depth": 500, "memory_mb": 48}
        worker.deploy(Function("victim", ECHO, settings=settings).write(Path(scratch)), "victim")
        ours, theirs = Address(worker.host, worker.port), Address(other.host, other.port)
        for kind in ATTACKS:
            run.say(WORDS[kind])
            samples: dict[str, list[float]] = {"alone": [], "another server": [], "attacked": []}
            offered: dict[str, list[float]] = {"another server": [], "attacked": []}
            for _ in range(run.pick(12, 4)):
                samples["alone"] += calls(client)
                for case, target in (("another server", theirs), ("attacked", ours)):
                    with attacking(kind, target, spare, offered[case]):
                        samples[case] += calls(client)
                    calls(client, SETTLING_CALLS)
            rows = {case: result.add(f"{WORDS[kind]}: {case}", "latency", "ms", ms) for case, ms in samples.items()}
            for case, rates in offered.items():
                result.add(f"{WORDS[kind]}: {case}", "offered", UNITS[kind], rates, tail=False)
            judge(result, WORDS[kind], rows)
        run.say("loops that ask for nothing")
        measure_loops(run, client, ours, spare, result)
    return result


def measure_loops(run: Run, client: Client, ours: Address, spare: SpareTime, result: Result) -> None:
    """What is noticed of attackers that do not attack."""
    words = f"{os.cpu_count()} loops that ask for nothing"
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(run.pick(12, 4)):
        alone += calls(client)
        with contextlib.ExitStack() as loops:
            for _ in range(os.cpu_count() or 1):
                loops.enter_context(attacking("loop", ours, spare, []))
            beside += calls(client)
    rows = [result.add(f"{words}: {case}", "latency", "ms", ms) for case, ms in (("alone", alone), ("beside", beside))]
    before, after = (row.p99 for row in rows)
    assert before is not None and after is not None
    result.add(f"{words}: the neighbour's p99, times that without", "ratio", "x", [after / before], tail=False)


def judge(result: Result, words: str, rows: dict[str, Row]) -> None:
    """What the attack costs the neighbour, and how much of that the machine costs any server that is attacked."""
    alone, machine, attacked = (rows[case].p99 for case in ("alone", "another server", "attacked"))
    assert alone is not None and machine is not None and attacked is not None
    result.aim(f"{words}: the neighbour's p99, times that without", attacked / alone, "<= 2")
    result.aim(
        f"{words}: the neighbour's p99, times that while another server is attacked", attacked / machine, "<= 1.5"
    )


def calls(client: Client, count: int = WINDOW_CALLS) -> list[float]:
    """Milliseconds of one window's calls."""
    taken = []
    for _ in range(count):
        time.sleep(GAP_S)
        taken.append(client.invoke("neighbour").ms)
    return taken


@contextlib.contextmanager
def attacking(kind: str, target: Address, spare: SpareTime, offered: list[float]) -> Iterator[None]:
    """An attacker at work until the end of the block; how much it offered a second is then in the list."""
    words = (kind, target.host, str(target.port), str(ATTACKS.get(kind, 0)))
    command = [sys.executable, "-m", "benchmarks.harness.attackers", *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY, start_new_session=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        spare.take_in(process.pid)
        process.stdout.readline()
        yield
        process.stdin.close()
        offered.append(float(process.stdout.readline()))


if __name__ == "__main__":
    sys.exit(main("neighbour", measure, "A warm function's latency while others attack the worker."))
