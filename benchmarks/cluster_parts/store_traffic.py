"""What a group asks of its store: statements of groups that do nothing and of deploys, and a whole cell's load on PostgreSQL.

The model: a group that does nothing asks for what one worker asks for, and what the second has added for each further one; so it
is with a deploy. With larger groups the two are compared.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import dataclass

from benchmarks.cluster_parts.database import database
from benchmarks.cluster_parts.group import Group, put, version_of, wait_for
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run
from benchmarks.harness.worker import REPOSITORY

SETTLE_S = 8.0
"""After which a worker that has just joined does what the others do."""
CELL = 200


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was counted of a group of so many workers."""

    workers: int
    idle_per_s: float
    of_deploy: float


def measure_traffic(run: Run, group: Group) -> Traffic:
    """Count what the workers that run do when nothing happens, and for a deploy."""
    pause, seconds, deploys = threading.Event(), run.pick(20.0, 6.0), run.pick(20, 8)
    pause.wait(SETTLE_S)
    began, before = time.monotonic(), group.database.statements()
    pause.wait(seconds)
    idle_per_s = (group.database.statements() - before) / (time.monotonic() - began)
    began, before = time.monotonic(), group.database.statements()
    for number in range(deploys):
        put(group.workers["w1"], "/functions/followed", _archive(number))
        wait_for(lambda: len({version_of(each, "followed") for each in group.workers.values()}) == 1)
    took_s = time.monotonic() - began
    count = group.database.statements() - before - idle_per_s * took_s
    return Traffic(len(group.workers), idle_per_s, count / deploys)


def _archive(number: int) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("f.py", f"def f(event):\n    return {number}, {time.time()}\n")
    return packed.getvalue()


def judge_traffic(seen: list[Traffic], result: Result) -> float:
    """Compare what was counted with the model; return statements of a deploy for each worker that follows it."""
    one, two, *_ = seen
    adds, follows = two.idle_per_s - one.idle_per_s, two.of_deploy - one.of_deploy
    for each in seen:
        case, more = f"store, {each.workers} workers", each.workers - 1
        idle, deploy = one.idle_per_s + more * adds, one.of_deploy + more * follows
        result.add(case, "statements when idle", "1/s", [each.idle_per_s], tail=False)
        result.add(case, "statements of a deploy", "", [each.of_deploy], tail=False)
        if more < 2:
            continue
        result.add(case, "statements when idle, model", "1/s", [idle], tail=False)
        result.add(case, "statements of a deploy, model", "", [deploy], tail=False)
        for what, off in (("idle statements", idle / each.idle_per_s), ("of a deploy", deploy / each.of_deploy)):
            result.aim(f"{each.workers} workers: {what}, model over measured, off by", abs(off - 1), "<= 0.1")
    return follows


def measure_cell(run: Run, result: Result) -> None:
    """Load PostgreSQL with the statements of a whole cell that does nothing."""
    for workers in run.pick((50, 100, CELL), (50,)):
        seconds = run.pick(20.0, 6.0)
        with database(connections=3 * workers + 50) as server:
            words = [sys.executable, "-m", "benchmarks.instruments.store_cell", server.dsn, str(workers), str(seconds)]
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
                assert process.stdout
                process.stdout.readline()  # it begins to count
                begun_s = server.cpu_s()
                text = process.stdout.readline()
                cpu_s = server.cpu_s() - begun_s
        found = json.loads(text)
        case = f"store of a cell of {workers} workers that do nothing"
        result.add(case, "processor time of PostgreSQL", "%", [100 * cpu_s / seconds], tail=False)
        result.add(case, "statements", "1/s", [found["statements"] / seconds], tail=False)
        result.add(case, "a look for changes", "ms", found["looks_ms"])
