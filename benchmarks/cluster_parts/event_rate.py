"""Events per second that a group accepts, and that it ends, with PostgreSQL on the same processors.

The function waits for a gate at its first event, so that nothing ends while events are accepted; when the gate opens, all that
was accepted ends, in sandboxes that run. PostgreSQL has its default settings: an accepted event is on the disk.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
from functools import partial
from pathlib import Path

from benchmarks.cluster_parts.group import Group, put, together
from benchmarks.harness.client import closed_loop, request
from benchmarks.harness.functions import Function
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run
from benchmarks.harness.worker import Worker

NAME = "gated"
GATED = """
import contextlib
import socket

passed = False


def handler(event, context):
    global passed
    if not passed:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", event)) as gate:
            gate.recv(1)
        passed = True
"""
CLIENTS = 16
"""Connections to each worker."""
PLACES = 16
"""Events of the function that run at a time on a worker; while it is shut, so many wait at the gate."""
LOOK_S = 0.01


def measure_events(run: Run, group: Group, scratch: Path, result: Result) -> None:
    settings = {"concurrency": PLACES * len(group.workers), "timeout_s": 60}
    group.deploy(Function(NAME, GATED, settings=settings).write(scratch), NAME)
    accepted_s, ended_s, cpu = list[float](), list[float](), list[float]()
    count = run.pick(5000, 1200)
    for _ in range(run.pick(5, 1)):
        group.restart_all()
        workers = list(group.workers.values())[:2]
        before_s = group.database.cpu_s()
        with socket.create_server(("127.0.0.1", 0), backlog=512) as gate:
            began = time.perf_counter()
            together(partial(_send, count=count // len(workers), port=gate.getsockname()[1]), workers)
            accepted_s.append(count / (time.perf_counter() - began))
            waiting = sum(map(_left, workers))
            began = time.perf_counter()
        # The gate is gone: who waits at it goes on, and nobody comes to it.
        together(_wait_ended, workers)
        ended_s.append(waiting / (time.perf_counter() - began))
        cpu.append((group.database.cpu_s() - before_s) / count * 1000)
    where = f"events of {len(workers)} workers, {CLIENTS} clients each"
    result.add(where, "accepted", "1/s", accepted_s, tail=False)
    result.add(where, "ended", "1/s", ended_s, tail=False)
    result.add(where, "processor time of PostgreSQL, an event", "ms", cpu, tail=False)
    result.aim("events accepted per second", result.row(where, "accepted").p50, ">= 1500")
    result.aim("events ended per second", result.row(where, "ended").p50, ">= 1500")


def _send(worker: Worker, count: int, port: int) -> None:
    """Have the function run later so many times, by several clients."""
    data = request(NAME, b"%d" % port).replace(b"\r\n\r\n", b"\r\nX-Amz-Invocation-Type: Event\r\n\r\n", 1)
    for _ in closed_loop(worker.host, worker.port, CLIENTS, itertools.repeat(data, count), status=202):
        pass


def _left(worker: Worker) -> int:
    """Return how many events a worker has."""
    events = put(worker, "/status", b"", method="GET")["events"]
    return int(events["waiting"] + events["running"])


def _wait_ended(worker: Worker) -> None:
    pause = threading.Event()
    while _left(worker):
        pause.wait(LOOK_S)
