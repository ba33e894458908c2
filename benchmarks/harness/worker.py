"""A private worker for one benchmark: its own state directory, configuration, port and process group.

Owns all of them and takes them away at the end, whatever happened. Speaks to the worker through the CLI, and asks its management
API where a command for each question would take longer than what is measured.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

REPOSITORY = Path(__file__).resolve().parent.parent.parent
READY = re.compile(r"sockd is listening on http://([^:/\s]+):(\d+)")
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 30.0
KERNEL = "SOCKD_KERNEL"
"""The variable that has each worker take the ways of an older kernel, as in tests."""
Config = Mapping[str, Mapping[str, Any]]
"""Sections of the worker's TOML, as in {"zygote": {"spares": 0}}."""


class WorkerFailed(Exception):
    """The worker did not start, or a command of the CLI failed; the message is its own words."""


class Worker:
    """A running worker."""

    def __init__(self, process: subprocess.Popen[str], state_dir: Path, host: str, port: int, log: Path) -> None:
        self.process = process
        self.state_dir = state_dir
        self.host, self.port = host, port
        self.log = log

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def cli(self, *arguments: str) -> str:
        """What `sockd ARGUMENTS --state-dir …` printed. Raises WorkerFailed with its stderr."""
        command = [*sockd(), *arguments, "--state-dir", str(self.state_dir)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
        if done.returncode:
            raise WorkerFailed(f"sockd {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """What `sockd ARGUMENTS --json` printed, parsed."""
        return json.loads(self.cli(*arguments, "--json"))

    def ask(self, path: str) -> Any:
        """What the management API answers to a GET, parsed: a millisecond, where a command starts an interpreter.

        Raises: WorkerFailed."""
        with contextlib.closing(_Management(self.state_dir)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read()
        if answer.status != 200:
            raise WorkerFailed(f"GET {path}: {answer.status} {text[-500:].decode(errors='replace')}")
        return json.loads(text)

    def deploy(self, directory: Path, name: str, *options: str) -> float:
        """Deploy a function through the CLI; the seconds that took, the start of the CLI included."""
        begun = time.perf_counter()
        self.cli("deploy", str(directory), "--name", name, *options)
        return time.perf_counter() - begun


class _Management(http.client.HTTPConnection):
    """A connection to a worker's management API."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__("localhost", timeout=START_DEADLINE_S)
        self._path = state_dir / "sockd.sock"

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def sockd() -> list[str]:
    """The command line of sockd in this interpreter."""
    return [sys.executable, "-m", "sockd"]


@contextlib.contextmanager
def running_worker(
    config: Config | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    state_dir: Path | None = None,
    listen: str = "127.0.0.1:0",
) -> Iterator[Worker]:
    """A worker with this configuration, stopped with SIGTERM at the end.

    Args:
        config: sections of its TOML; the rest are defaults.
        environment: variables set for it besides our own.
        state_dir: kept for another worker; None: one of its own.
        listen: its address and port; 0: any.

    Raises: WorkerFailed. Whatever is raised, also by the caller, is given the end of the worker's log as a note."""
    with tempfile.TemporaryDirectory(prefix="sockd-bench-") as scratch:
        directory = Path(scratch)
        config_file, log = directory / "sockd.toml", directory / "worker.log"
        config_file.write_text(to_toml(with_kernel(config or {})))
        state_dir = state_dir or directory / "state"
        command = [
            *sockd(),
            "up",
            "--listen",
            listen,
            "--state-dir",
            str(state_dir),
            "--config",
            str(config_file),
        ]
        with log.open("w") as stderr:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=REPOSITORY,
                env={
                    **os.environ,
                    "PYTHONDONTWRITEBYTECODE": "",
                    **(environment or {}),
                },  # nobody compiles it at each start
                start_new_session=True,
            )
        try:
            host, port = wait_ready(process)
            yield Worker(process, state_dir, host, port, log)
        except Exception as error:
            error.add_note(f"the end of the worker's log:\n{tail(log)}")
            raise
        finally:
            stop(process)


def with_kernel(config: Config) -> Config:
    """The configuration, with the ways of the kernel that `SOCKD_KERNEL` names if it names none itself."""
    kernel = os.environ.get(KERNEL, "")
    sandbox = config.get("sandbox", {})
    return {**config, "sandbox": {"kernel": kernel, **sandbox}} if kernel else config


def wait_ready(process: subprocess.Popen[str]) -> tuple[str, int]:
    """The address that the worker printed. Raises WorkerFailed after START_DEADLINE_S or when it exits before."""
    assert process.stdout
    deadline = time.monotonic() + START_DEADLINE_S
    for line in lines_until(process.stdout, deadline):
        if found := READY.search(line):
            return found[1], int(found[2])
    raise WorkerFailed("the worker did not start")


def lines_until(stream: IO[str], deadline: float) -> Iterator[str]:
    """Lines of a pipe until it ends or the deadline (time.monotonic) passes."""
    while (left := deadline - time.monotonic()) > 0 and select.select([stream], [], [], left)[0]:
        if not (line := stream.readline()):
            return
        yield line


def stop(process: subprocess.Popen[str]) -> None:
    """SIGTERM, and after STOP_DEADLINE_S SIGKILL to the whole group."""
    process.terminate()
    try:
        process.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout:
        process.stdout.close()


def tail(log: Path, lines: int = 30) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def to_toml(config: Config) -> str:
    """The sections as TOML. Values are strings, numbers, booleans or lists of strings, which JSON writes alike."""
    sections = []
    for name, values in config.items():
        keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
        sections.append(f"[{name}]\n{keys}")
    return "\n".join(sections)
