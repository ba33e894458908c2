"""From the answer to a deploy until every other worker of the group answers by it."""

from __future__ import annotations

import io
import threading
import time
import zipfile

from benchmarks.cluster_parts.group import Group, put, together, wait_for
from benchmarks.harness.client import BadAnswer, Client
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run
from benchmarks.harness.worker import Worker

NAME = "shown"
PAUSE_S = 0.002


def measure_visibility(run: Run, group: Group, result: Result) -> None:
    first, *others = (each for _, each in sorted(group.workers.items()))
    deploys, all_ms = list[float](), list[float]()
    for number in range(run.pick(100, 15)):
        began = time.perf_counter()
        put(first, f"/functions/{NAME}", _archive(number))
        answered = time.perf_counter()
        deploys.append((answered - began) * 1000)
        if not number:
            wait_for(lambda: all(_answers(each, 0) for each in others))
            continue
        until = list[float]()

        def answered_by(worker: Worker, number: int = number, until: list[float] = until) -> None:
            until.append(_answered(worker, number))

        together(answered_by, others)
        all_ms.append((max(until) - answered) * 1000)
    result.add("deploy", "duration", "ms", deploys)
    row = result.add("deploy, until all other workers answer by it", "latency", "ms", all_ms)
    result.aim("deploy until it is visible on all workers, ms, the longest", row.most, "<= 1000")


def _archive(number: int) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("f.py", f"def f(event):\n    return {number}\n")
    return packed.getvalue()


def _answered(worker: Worker, number: int) -> float:
    """Return when a worker first answered by a deploy (time.perf_counter)."""
    pause = threading.Event()
    with Client(worker.host, worker.port) as client:
        while int(client.invoke(NAME).body) != number:
            pause.wait(PAUSE_S)
    return time.perf_counter()


def _answers(worker: Worker, number: int) -> bool:
    try:
        with Client(worker.host, worker.port) as client:
            return int(client.invoke(NAME).body) == number
    except BadAnswer:  # the worker has no such function yet
        return False
