"""`warm`: requests to functions whose sandboxes are running, against servers that answer in-process, in turns.

The peers are FastAPI on uvicorn with one worker and with two, which is what a user would write without us, and uvicorn with a
bare application. The requests are drawn (`traffic`); identical requests, one function and one body, have rows of their own.
At 64 connections each function has rows, too: requests of a popular one wait for its sandboxes, while those of a rare one find
one idle.

Turns are short and many, and a share is the median of the shares of neighbouring turns: a virtual processor can be half as fast
for seconds, whenever the host has work for the other half of its core, and of a few long turns those of one side only may be hit.
"""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.client import Client, request
from benchmarks.harness.functions import ECHO, Function
from benchmarks.harness.load import Load, drive, generator
from benchmarks.harness.results import Result
from benchmarks.harness.run import Run, main
from benchmarks.harness.traffic import requests
from benchmarks.harness.worker import REPOSITORY, running_worker, stop

FUNCTIONS = tuple(f"echo{number}" for number in range(5))
REQUESTS = 5000
"""Drawn once for a run; the load begins again when all were sent."""
SOCKD, RAW, ONE, TWO = "sockd", "in-process", "FastAPI, one worker", "FastAPI, two workers"
TRAFFIC, IDENTICAL = "realistic requests", "identical requests"
CONCURRENCIES = (1, 10, 64)
JUDGED = ((TRAFFIC, 1), (TRAFFIC, 64))
"""Where an aim is a ratio to a peer."""
TURN_S = 1.0


@dataclass(frozen=True, slots=True)
class Server:
    """Something that answers POST /run/<name> with the body it was sent."""

    name: str
    host: str
    port: int


def measure(run: Run) -> Result:
    result = Result("warm")
    result.notes.append(f"load by {generator()} on the same {result.machine['cpus']} processors")
    drawn = requests(FUNCTIONS, REQUESTS)
    cases = {(TRAFFIC, concurrency): drawn for concurrency in CONCURRENCIES}
    cases |= {(IDENTICAL, concurrency): [request(FUNCTIONS[0])] for concurrency in (1, 64)}
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(running_worker({"function": {"concurrency": 4}}))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in FUNCTIONS:
            ours.deploy(Function(name, ECHO).write(scratch), name)
        servers = [Server(SOCKD, ours.host, ours.port), stack.enter_context(in_process_server())]
        if importlib.util.find_spec("fastapi") is None:
            result.notes.append("FastAPI: not measured, it is not installed (pip install fastapi uvicorn)")
        else:
            servers += [stack.enter_context(fastapi_server(name, count)) for name, count in ((ONE, 1), (TWO, 2))]
        for server in servers:
            drive(server.host, server.port, drawn, concurrency=8, seconds=1)  # each connection finds a running sandbox
        for (label, concurrency), sent in cases.items():
            run.say(f"{label}, {concurrency} connections")
            compare(run, servers, label, sent, concurrency, result)
        measure_spaced(run, servers[0], result)
    judge(result)
    return result


def compare(run: Run, servers: list[Server], label: str, sent: list[bytes], concurrency: int, result: Result) -> None:
    """The servers in turns: A B C D A B …"""
    loads: dict[str, list[Load]] = {server.name: [] for server in servers}
    for _ in range(run.pick(15, 3 if (label, concurrency) in JUDGED else 1)):
        for server in servers:
            loads[server.name].append(drive(server.host, server.port, sent, concurrency=concurrency, seconds=TURN_S))
    for name, seen in loads.items():
        case = f"{name}, {label}, {concurrency} at once"
        result.add(case, "rate", "1/s", [load.rate for load in seen], tail=False)
        result.add(case, "p50", "ms", [load.p50_ms for load in seen], tail=False)
        result.add(case, "p99", "ms", [load.p99_ms for load in seen], tail=False)
    for name, seen in loads.items():
        if name != SOCKD:
            pairs = list(zip(loads[SOCKD], seen, strict=True))
            case = f"sockd over {name}, {label}, {concurrency} at once"
            result.add(case, "rate", "x", [ours.rate / theirs.rate for ours, theirs in pairs], tail=False)
            result.add(case, "p50", "x", [ours.p50_ms / theirs.p50_ms for ours, theirs in pairs], tail=False)
            result.add(case, "p99", "x", [ours.p99_ms / theirs.p99_ms for ours, theirs in pairs], tail=False)
    if len(sent) > 1 and concurrency == max(CONCURRENCIES):
        add_functions(loads, label, concurrency, result)


def add_functions(loads: dict[str, list[Load]], label: str, concurrency: int, result: Result) -> None:
    """Add a row for each function of each server, where the load generator tells functions apart."""
    for server, seen in loads.items():
        for name in seen[0].functions:
            measured = [load.functions[name] for load in seen if name in load.functions]
            case = f"{server}, {name} of {label}, {concurrency} at once"
            result.add(case, "p50", "ms", [p50_ms for p50_ms, _ in measured], tail=False)
            result.add(case, "p99", "ms", [p99_ms for _, p99_ms in measured], tail=False)


def measure_spaced(run: Run, server: Server, result: Result) -> None:
    """Requests 200 ms apart find the sandbox paused: thaw and request."""
    run.say("requests to a paused sandbox")
    with Client(server.host, server.port) as client:
        times = []
        for _ in range(run.pick(100, 20)):
            time.sleep(0.2)
            times.append(client.invoke(FUNCTIONS[0]).ms)
    result.add("sockd, echo, paused before", "latency", "ms", times)


@contextlib.contextmanager
def in_process_server() -> Iterator[Server]:
    """A peer: uvicorn with the same settings, answering without a sandbox."""
    with server_process(RAW, "benchmarks.peers.in_process_server") as server:
        yield server


@contextlib.contextmanager
def fastapi_server(name: str, workers: int) -> Iterator[Server]:
    """A peer: what a user would write without us."""
    with server_process(name, "benchmarks.peers.fastapi_server", str(workers)) as server:
        yield server


@contextlib.contextmanager
def server_process(name: str, *module: str) -> Iterator[Server]:
    process = subprocess.Popen(
        [sys.executable, "-m", *module],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        start_new_session=True,  # as a worker's: kernels may share the processors by sessions
    )
    try:
        assert process.stdout
        server = Server(name, "127.0.0.1", int(process.stdout.readline()))
        with Client(server.host, server.port) as client:
            client.invoke(FUNCTIONS[0])  # it serves
        yield server
    finally:
        stop(process)


def judge(result: Result) -> None:
    with contextlib.suppress(KeyError):  # no FastAPI here
        rate = result.row(f"sockd over {TWO}, {TRAFFIC}, 64 at once", "rate").p50
        result.aim("realistic requests at 64 connections, times FastAPI's rate on two workers", rate, ">= 1.0")
        p99 = result.row(f"sockd over {TWO}, {TRAFFIC}, 64 at once", "p99").p50
        result.aim("realistic requests at 64 connections, times FastAPI's p99 on two workers", p99, "<= 1.2")
        p50 = result.row(f"sockd over {TWO}, {TRAFFIC}, 1 at once", "p50").p50
        result.aim("realistic requests at 1 connection, times FastAPI's p50 on two workers", p50, "<= 1.0")
    share = result.row(f"sockd over {RAW}, {IDENTICAL}, 64 at once", "rate").p50
    result.aim("identical requests at 64 connections, times the in-process server's rate", share, ">= 0.5")


if __name__ == "__main__":
    sys.exit(main("warm", measure, "Warm requests, against FastAPI and a bare server that answer in-process."))
