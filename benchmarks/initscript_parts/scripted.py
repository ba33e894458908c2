"""A worker, an S3 server and an initscript between them, for benchmarks of the engine.

Owns the files of the functions. The objects, and the event that names them, are those of the example `thumbnailer`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.client import Answer, Client
from benchmarks.harness.cold import cold_only
from benchmarks.harness.functions import Function
from benchmarks.harness.worker import REPOSITORY, Worker, sockd
from benchmarks.s3.process import S3Process

BUCKET, SMALL, LARGE, STATE = "bench", "small", "large", "state"
LARGE_BYTES, STATE_BYTES = 15_000_000, 200_000_000
EVENT = {"bucket": {"bucket": BUCKET, "input": "in"}, "object": {"key": SMALL}}
EXAMPLES = REPOSITORY / "initscripts" / "examples"
READ = """\
import storage


def handler(event):
    return len(storage.download_stream("bench", "in/small"))
"""


@dataclass(frozen=True, slots=True)
class Scripted:
    """What functions need beside a worker."""

    scratch: Path
    env: dict[str, str]
    """By which a function finds S3."""
    script: Path

    def deploy(self, worker: Worker, function: Function, *, script: bool = True, again: str = "") -> None:
        """Deploy a function that finds S3, with or without the initscript.

        Args:
            again: what makes this version differ from the one before."""
        parent = self.scratch / str(worker.port) / again
        directory = parent / function.name
        if not directory.exists():
            Function(function.name, function.code, settings={"storage": "sockd", "memory_mb": 256}).write(parent)
            variables = {**self.env, "VERSION": again}
            with (directory / "sockd.toml").open("a") as settings:
                settings.write(
                    "[env]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in variables.items())
                )
        options = ("--initscript", str(self.script)) if script else ()
        worker.cli("deploy", str(directory), "--name", function.name, *options)


@contextlib.contextmanager
def scripted() -> Iterator[Scripted]:
    """The objects in an S3 server, and the script that fetches them."""
    with tempfile.TemporaryDirectory() as scratch, S3Process() as s3:
        with s3.client() as client:
            client.make_bucket(BUCKET)
            client.put(BUCKET, f"in/{SMALL}", b"x" * 1000)
            client.put(BUCKET, f"in/{LARGE}", bytes(LARGE_BYTES))
            client.put(BUCKET, f"in/{STATE}", bytes(STATE_BYTES))
        script = build(EXAMPLES / "thumbnailer" / "thumbnailer.c", Path(scratch))
        yield Scripted(Path(scratch), s3.env(), script)


_built: dict[Path, bytes] = {}
"""The modules of this run, by their sources."""


def build(source: Path, directory: Path) -> Path:
    """Compile a script in C, once in a run; return its module. Raises: subprocess.CalledProcessError."""
    module = directory / f"{source.stem}.wasm"
    if source in _built:
        module.write_bytes(_built[source])
        return module
    command = [*sockd(), "initscript", "build", str(source), "-o", str(module)]
    subprocess.run(command, check=True, capture_output=True, cwd=REPOSITORY)
    _built[source] = module.read_bytes()
    return module


def script_times(worker: Worker) -> tuple[float, float]:
    """(ms to the guest, ms to the first byte sent) of one cold start of READ as `reader`, after its arrival."""
    with Client(worker.host, worker.port) as client:
        answer = cold_only(client.invoke("reader", json.dumps(EVENT).encode()))
    trace = trace_of(worker, answer)
    arrived = trace["arrived_ns"]
    boot = next(span["start_ns"] for span in trace["spans"] if span["name"] == "boot")
    return (boot - arrived) / 1e6, (trace["rpcs"][0]["sent_ns"] - arrived) / 1e6


def trace_of(worker: Worker, answer: Answer) -> Any:
    """The trace of an answered request, with the report of its initscript, for which the worker waits a second at most."""
    while (trace := worker.ask(f"/traces/{answer.headers['x-amzn-requestid']}"))["initscript"] == "running":
        time.sleep(0.01)
    return trace
