"""What a worker adds when a request wakes a stopped service: that request, in turns with the program's own start on the host.

Both ask in the same way, over TCP. The program that is started on the host is asked again and again until it listens, as a client
without a worker would have to ask.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.cold import cold_config
from benchmarks.harness.forwarding import forwarding
from benchmarks.harness.results import Result, median
from benchmarks.harness.run import Run, in_turns
from benchmarks.harness.worker import Worker, running_worker
from benchmarks.initscript_parts import server_states as states
from benchmarks.initscript_parts.services import SOURCES, WAITS, WrongAnswer, row_of, table_text

ANSWER_S = 10.0
AGAIN_S = 0.0002
"""Between two attempts to connect to a program that starts."""
STOP_S = 20.0
WOKEN, OWN = "request that wakes it", "own start"
MOST_MS = "<= 10"


@dataclass(frozen=True, slots=True)
class Program:
    """A server, on the host and as a service."""

    name: str
    command: Callable[[int], list[str]]
    """Args: its port."""
    question: bytes
    answer: bytes
    """How its answer begins."""


PROGRAMS = (
    Program(
        "memcached",
        lambda port: ["/usr/bin/memcached", "-l", "0.0.0.0", "-p", str(port), "-u", "root"],
        b"version\r\n",
        b"VERSION ",
    ),
    Program(
        "a server in Python",
        lambda port: ["/usr/bin/python3", "-S", "-c", "import answering; answering.serve(lambda path: b'here')"],
        b"GET / HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
    ),
)


def measure(run: Run, scratch: Path, result: Result) -> None:
    """Add the rows of all programs that are installed, and the aims. Raises: WorkerFailed, WrongAnswer."""
    with forwarding(), running_worker(cold_config()) as worker:
        for program in PROGRAMS:
            if why := states.lacking(program.command(0)[0]):
                result.notes.append(f"{program.name}: {why}")
                continue
            found = measured(run, scratch, worker, program)
            for metric, samples in found.items():
                result.add(program.name, metric, "ms", samples)
            over = median(found[WOKEN]) - median(found[OWN])
            result.aim(f"wake of a stopped service, ms over its own start: {program.name}", over, MOST_MS)


def measured(run: Run, scratch: Path, worker: Worker, program: Program) -> dict[str, list[float]]:
    """Return the ms of both ways to start a program. Raises: WorkerFailed, WrongAnswer."""
    published, own = states.free_port(), states.free_port()
    deploy(worker, scratch, program, published)
    turns: dict[str, Callable[[], float]] = {
        WOKEN: lambda: woken(worker, program, published),
        OWN: lambda: started(program, own),
    }
    for turn in turns.values():
        turn()  # what a first start alone has to do
    return in_turns(turns, run.pick(60, 5))


def deploy(worker: Worker, scratch: Path, program: Program, published: int) -> None:
    """Deploy a program as a service that is stopped soon after its last client."""
    directory = scratch / program.name.replace(" ", "-")
    directory.mkdir()
    (directory / "answering.py").write_bytes((SOURCES / "servers" / "answering.py").read_bytes())
    port = 8080
    tables: dict[str, dict[str, Any]] = {
        "": {"kind": "service", "command": program.command(port), "network": "private", **WAITS},
        "service": {"port": port, "publish": published, "idle_s": 0.1},
    }
    (directory / "sockd.toml").write_text("".join(table_text(key, table) for key, table in tables.items()))
    worker.cli("deploy", str(directory), "--name", directory.name, "--no-check")


def woken(worker: Worker, program: Program, published: int) -> float:
    """Return the ms until a stopped service has answered. Raises: WrongAnswer."""
    name = program.name.replace(" ", "-")
    until_s = time.monotonic() + STOP_S
    while (row := row_of(worker, name))["state"] != "stopped":
        if time.monotonic() > until_s:
            raise WrongAnswer(f"{name} is not stopped: {row}")
        time.sleep(0.02)
    begun = time.perf_counter()
    ask(program, published)
    ms = (time.perf_counter() - begun) * 1000
    if row_of(worker, name)["starts"] != row["starts"] + 1:
        raise WrongAnswer(f"{name} was not started by the request")
    return ms


def started(program: Program, port: int) -> float:
    """Return the ms from the start of a program on the host until it has answered. Raises: WrongAnswer."""
    begun = time.perf_counter()
    environment = {"PATH": os.defpath, "PORT": str(port), "PYTHONPATH": str(SOURCES / "servers")}
    with subprocess.Popen(program.command(port), env=environment, stderr=sys.stderr) as process:
        try:
            ask(program, port)
            return (time.perf_counter() - begun) * 1000
        finally:
            process.kill()


def ask(program: Program, port: int) -> None:
    """Ask until there is an answer. Raises: WrongAnswer, OSError."""
    until_s = time.monotonic() + ANSWER_S
    while True:
        try:
            client = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
            break
        except ConnectionRefusedError:
            if time.monotonic() > until_s:
                raise
            time.sleep(AGAIN_S)
    with client:
        client.sendall(program.question)
        if not (answer := client.recv(4096)).startswith(program.answer):
            raise WrongAnswer(f"{program.name} answered {answer[:80]!r}")
