"""`restart`: what clients see who call at once after the worker was ended and started again.

A worker has learned what its functions import; it is ended, in order or by SIGKILL, and started again in the same state
directory. From the moment its port is open, 64 clients call one function as fast as they are answered. One function is there
twice, with a snapshot and without: its template ends with the worker, and is made again before the port opens.
"""

from __future__ import annotations

import io
import itertools
import json
import random
import signal
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.burst import Burst, burst
from benchmarks.harness.client import Client, request
from benchmarks.harness.cold import settle
from benchmarks.harness.functions import NOOP, Function
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run, main
from benchmarks.harness.unix_connection import UnixConnection
from benchmarks.harness.worker import Worker, WorkerFailed, running_worker

CLIENTS = 64
SHARE = 0.8
"""The share of the rate before the restart, which counts as having it back."""
REACHED = f"until {SHARE:g} of the rate before"
COLD_CALLS = 4
"""Calls of a new sandbox each, from which the worker learns."""
SETTINGS = {"memory_mb": 256, "timeout_s": 30}
"""The default of 10 s for an init, and of 10 sandboxes at once."""
ENDINGS = {"SIGTERM": signal.SIGTERM, "SIGKILL": signal.SIGKILL}
CROWD = "one of many"


COMPUTES = "import time\n\nwhile time.process_time() < 1:\n    pass"
"""Own code, which no Zygote runs ahead."""


def function(name: str, statement: str, *requirements: str, **settings: bool) -> Function:
    return Function(name, f"{statement}\n\n\n{NOOP}", requirements, {**SETTINGS, **settings})


PLAIN, SNAPPED = "computes-1-s", "computes-1-s-snapshot"
FUNCTIONS = (
    function("noop", ""),
    function(PLAIN, COMPUTES),
    function(SNAPPED, COMPUTES, snapshot=True),
    function("fastapi-sqlalchemy", "import fastapi\nimport sqlalchemy.orm", "fastapi", "SQLAlchemy"),
    function("scikit-learn", "import sklearn.linear_model", "scikit-learn"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A function, or a crowd of functions of which each request calls one."""

    name: str
    names: tuple[str, ...]

    def requests(self) -> Iterator[bytes]:
        """Without an end; the same in each run."""
        drawn = random.Random(0)
        if len(self.names) == 1:
            return itertools.repeat(request(self.names[0]))
        return (request(drawn.choice(self.names)) for _ in itertools.count())


def measure(run: Run) -> Result:
    result, endings = Result("restart"), run.pick(ENDINGS, {"SIGTERM": signal.SIGTERM})
    with tempfile.TemporaryDirectory(prefix="sockd-bench-") as scratch:
        state = Path(scratch) / "state"
        with running_worker(state_dir=state) as worker:
            cases = deployed(run, worker, Path(scratch) / "code", result)
        failed = 0
        for case in cases:
            for name, ending in endings.items():
                failed += restarted(run, case, name, ending, state, result)
    result.aim("requests that failed after a restart, all functions", failed, "<= 0")
    for how in endings:
        for metric in ("first answer", REACHED):
            own, snapped = (result.row(f"{name}, after {how}", metric).p50 for name in (PLAIN, SNAPPED))
            words = f"{metric} after {how} with a snapshot, times without"
            if metric == "first answer":
                result.aim(words, snapped / own, "<= 0.05")
            else:
                result.notes.append(f"{words}: {snapped / own:.2f}")
    return result


def deployed(run: Run, worker: Worker, code: Path, result: Result) -> list[Case]:
    """Deploy what there is in the index, and the crowd."""
    cases = []
    for each in run.pick(FUNCTIONS, FUNCTIONS[:3]):
        try:
            worker.deploy(each.write(code), each.name)
        except WorkerFailed as error:
            result.notes.append(f"{each.name}: not measured: {str(error).splitlines()[0]}")
            continue
        cases.append(Case(each.name, (each.name,)))
    count = run.pick(3000, 100)
    run.say(f"deploying {count} functions")
    names = tuple(f"one-of-many-{number}" for number in range(count))
    begun = time.perf_counter()
    deploy_crowd(worker, names)
    result.add(
        f"deploy, {count} in a row", "duration of one", "ms", [(time.perf_counter() - begun) / count * 1000], tail=False
    )
    return [*cases, Case(f"{CROWD} ({count} functions)", names)]


def deploy_crowd(worker: Worker, names: tuple[str, ...]) -> None:
    """The same code under many names. Raises: WorkerFailed."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("f.py", "def f(event):\n    return {}\n")
    connection = UnixConnection(worker.state_dir / "sockd.sock")
    headers = {"x-sockd-overrides": json.dumps({"memory_mb": 48})}
    for name in names:
        connection.request("PUT", f"/functions/{name}", packed.getvalue(), headers)
        answer = connection.getresponse().read()
        if b'"result"' not in answer:
            raise WorkerFailed(f"deploy of {name}: {answer[-500:].decode(errors='replace')}")
    connection.close()


def restarted(run: Run, case: Case, how: str, ending: int, state: Path, result: Result) -> int:
    """Measure one case; the number of requests that failed."""
    run.say(f"{case.name}, after {how}")
    seconds = run.pick(20.0, 6.0)
    with running_worker(state_dir=state) as worker:
        learn(worker, case)
        before = measured(worker, case, run.pick(6.0, 2.0))
        rate = before.rate(before.seconds / 2)
        worker.process.send_signal(ending)
        worker.process.wait()
    begun = time.perf_counter()
    with running_worker(state_dir=state) as worker:
        start_s = time.perf_counter() - begun
        after = measured(worker, case, seconds)
    label = f"{case.name}, after {how}"
    result.add(label, "start of the worker until its port is open", "s", [start_s], tail=False)
    result.add(label, "first answer", "s", [after.first_s], tail=False)
    result.add(label, "rate before", "1/s", [rate], tail=False)
    result.add(label, REACHED, "s", [after.reached_s(SHARE * rate)], tail=False)
    result.add(label, "failures", "", [float(after.failed)], tail=False)
    if after.reached_s(SHARE * rate) == after.seconds:
        result.notes.append(f"{label}: the rate was not reached within {seconds:g} s")
    for words, count in after.failures.most_common(3):
        result.notes.append(f"{label}: {count} times {words}")
    return after.failed + before.failed


def learn(worker: Worker, case: Case) -> None:
    """Have the worker learn what the function imports, and wait until it has nothing more to do."""
    for name in case.names[:COLD_CALLS] * (COLD_CALLS if len(case.names) == 1 else 1):
        data = request(name).replace(b"\r\n\r\n", b"\r\nX-Sockd-Fresh: 1\r\n\r\n", 1)
        with Client(worker.host, worker.port) as client:  # it may learn for longer than it keeps an idle connection
            client.exchange(data)
        settle(worker)


def measured(worker: Worker, case: Case, seconds: float) -> Burst:
    return burst(worker.host, worker.port, CLIENTS, case.requests(), seconds)


if __name__ == "__main__":
    sys.exit(main("restart", measure, "Clients that call at once after a restart: first answer, failures, rate."))
