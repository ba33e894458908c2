"""`warm`: requests to a function whose sandbox is running, against the same HTTP server answering in-process, in turns.

Turns are short and many, and a share is the median of the shares of neighbouring turns: a virtual processor can be half as fast
for seconds, whenever the host has work for the other half of its core, and of a few long turns those of one side only may be hit.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.client import Client
from benchmarks.functions import ECHO, Function
from benchmarks.harness import Run, main
from benchmarks.load import Load, drive, generator
from benchmarks.results import Result
from benchmarks.worker import REPOSITORY, stop, worker

KILOBYTE = b'{"text": "%s"}' % (b"x" * 1012)
BODIES = {"no-op": b"{}", "1 KB": KILOBYTE}
CONCURRENCIES = (1, 10, 64)
JUDGED = ("no-op", 64)
"""Where an aim is a share of the peer's rate."""
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
    with (
        worker({"function": {"concurrency": 4}}) as ours,
        in_process_server() as peer,
        tempfile.TemporaryDirectory() as scratch,
    ):
        ours.deploy(Function("echo", ECHO).write(Path(scratch)), "echo")
        servers = (Server("sockd", ours.host, ours.port), peer)
        for server in servers:
            warm_up(server)
        for label, body in BODIES.items():
            for concurrency in CONCURRENCIES:
                run.say(f"{label}, {concurrency} connections")
                compare(run, servers, label, body, concurrency, result)
        measure_spaced(run, servers[0], result)
    judge(result)
    return result


def compare(run: Run, servers: tuple[Server, ...], label: str, body: bytes, concurrency: int, result: Result) -> None:
    """The servers in turns: A B A B …"""
    loads: dict[str, list[Load]] = {server.name: [] for server in servers}
    for _ in range(run.pick(15, 5 if (label, concurrency) == JUDGED else 2)):
        for server in servers:
            loads[server.name].append(
                drive(server.host, server.port, "echo", body, concurrency=concurrency, seconds=TURN_S)
            )
    for name, seen in loads.items():
        case = f"{name}, {label}, {concurrency} at once"
        result.add(case, "rate", "1/s", [load.rate for load in seen], tail=False)
        result.add(case, "p50", "ms", [load.p50_ms for load in seen], tail=False)
        result.add(case, "p99", "ms", [load.p99_ms for load in seen], tail=False)
    ours, peers = loads.values()
    shares = [100 * mine.rate / other.rate for mine, other in zip(ours, peers, strict=True)]
    result.add(f"sockd, {label}, {concurrency} at once", "share of in-process", "%", shares, tail=False)


def warm_up(server: Server) -> None:
    """Have every connection of the load find a running sandbox."""
    drive(server.host, server.port, "echo", b"{}", concurrency=8, seconds=1)


def measure_spaced(run: Run, server: Server, result: Result) -> None:
    """Requests 200 ms apart find the sandbox paused: thaw and request."""
    run.say("requests to a paused sandbox")
    with Client(server.host, server.port) as client:
        times = []
        for _ in range(run.pick(100, 20)):
            time.sleep(0.2)
            times.append(client.invoke("echo").ms)
    result.add("sockd, no-op, paused before", "latency", "ms", times)


@contextlib.contextmanager
def in_process_server() -> Iterator[Server]:
    """The peer: uvicorn with the same settings, answering without a sandbox."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.in_process_server"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        start_new_session=True,  # as a worker's: kernels may share the processors by sessions
    )
    try:
        assert process.stdout
        yield Server("in-process", "127.0.0.1", int(process.stdout.readline()))
    finally:
        stop(process)


def judge(result: Result) -> None:
    rate = result.row("sockd, no-op, 64 at once", "rate").p50
    result.aim("no-op p50 at 1 connection, ms", result.row("sockd, no-op, 1 at once", "p50").p50, "<= 0.25")
    result.aim("no-op requests per second at 64 connections", rate, ">= 10000")
    share = result.row("sockd, no-op, 64 at once", "share of in-process").p50
    result.aim("share of the in-process server's rate at 64", share / 100, ">= 0.5")


if __name__ == "__main__":
    sys.exit(main("warm", measure, "Warm requests, against the same HTTP server answering in-process."))
