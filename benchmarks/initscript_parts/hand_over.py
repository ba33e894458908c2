"""How long it takes until what a script has fetched is in the hands of a function: in Python, and in C.

15 MB as a view of the region and as a copy (initscript paper, Fig. 14), and 200 MB as a file that the program maps for writing,
as memcached does with the state that it starts from (Fig. 12). What is measured begins when all has come.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.client import Answer, Client
from benchmarks.harness.cold import cold_only
from benchmarks.harness.functions import Function
from benchmarks.harness.run import Run, in_turns
from benchmarks.harness.worker import REPOSITORY, Worker
from benchmarks.initscript_parts.scripted import (
    EVENT,
    LARGE,
    LARGE_BYTES,
    STATE,
    STATE_BYTES,
    Scripted,
    build,
    trace_of,
)

HAND_OVER = """\
import time

import storage


def handler(event):
    time.sleep(0.2)  # until all of it has come: what is measured is the handing over
    begun = time.perf_counter_ns()
    data = storage.download_stream("bench", "in/large")
    if event["copy"]:
        data = bytes(data)
    ended = time.perf_counter_ns()
    return {"ns": ended - begun, "bytes": len(data), "last": data[-1]}
"""
SOURCES = REPOSITORY / "benchmarks/initscript_parts"
HEADERS = REPOSITORY / "initscripts/sdk/c"
SETTINGS = 'runtime = "provided"\nmemory_mb = 512\ntimeout_s = 30\n'


@dataclass(frozen=True, slots=True)
class HandOver:
    """Milliseconds by case; empty: a program in C cannot be compiled here."""

    python: dict[str, list[float]]
    """view, copy."""
    in_c: dict[str, list[float]]
    """view, copy, file; exchange: from the last byte of 200 MB in the engine to the file that is mapped."""


def hand_over(run: Run, worker: Worker, parts: Scripted) -> HandOver:
    """Measure all cases, those of one language in turns."""
    parts.deploy(worker, Function("receiver", HAND_OVER))
    with Client(worker.host, worker.port) as client:

        def python(*, copy: bool) -> Callable[[], float]:
            event: dict[str, Any] = {**EVENT, "object": {"key": LARGE}, "copy": copy}
            return lambda: taken(client, "receiver", event, LARGE_BYTES)[0]

        cases = {"view": python(copy=False), "copy": python(copy=True)}
        return HandOver(
            in_turns(cases, run.pick(30, 3)), in_c(run, worker, client, parts) if shutil.which("cc") else {}
        )


def in_c(run: Run, worker: Worker, client: Client, parts: Scripted) -> dict[str, list[float]]:
    """Measure the cases of the program in C."""
    directory = parts.scratch / "in-c"
    directory.mkdir()
    source = str(SOURCES / "receiver.c")
    command = ["cc", "-std=c11", "-O2", "-I", str(HEADERS), source, "-o", str(directory / "bootstrap")]
    subprocess.run(command, check=True, capture_output=True)
    (directory / "sockd.toml").write_text(
        SETTINGS + "[env]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in parts.env.items())
    )
    script = build(SOURCES / "receiver_init.c", parts.scratch)
    worker.cli("deploy", str(directory), "--name", "in-c", "--no-check", "--initscript", str(script))
    exchanges: list[float] = []

    def program(how: str) -> Callable[[], float]:
        event = {"key": f"in/{STATE if how == 'file' else LARGE}", "as": how}

        def call() -> float:
            ms, answer = taken(client, "in-c", event, STATE_BYTES if how == "file" else LARGE_BYTES)
            if how == "file":
                trace = trace_of(worker, answer)
                exchanges.append((json.loads(answer.body)["ended_ns"] - trace["rpcs"][0]["done_ns"]) / 1e6)
            return ms

        return call

    samples = in_turns({how: program(how) for how in ("view", "copy")}, run.pick(30, 3))
    samples |= in_turns({"file": program("file")}, run.pick(10, 2))
    return {**samples, "exchange": exchanges}


def taken(client: Client, name: str, event: dict[str, Any], length: int) -> tuple[float, Answer]:
    """Return the ms that one hand-over took, and the answer."""
    answer = cold_only(client.invoke(name, json.dumps(event).encode()))
    reported = json.loads(answer.body)
    assert reported["bytes"] == length and reported["last"] == 0, reported
    return reported["ns"] / 1e6, answer
