"""Things that start a confined Python process, each driven over a pipe: the kernel's floor, and peers that are installed.

A starter lives in a process of its own (floor.py, peer_driver.py) so that forking never copies the benchmark. It answers
one JSON line per command; `start` makes one sandbox, `rate` many at once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).resolve().parent
PYTHON = os.path.realpath(sys.executable)
"""The interpreter itself: a virtual environment's link would search for its site-packages first."""
PEERS = ("python", "bwrap", "crun", "runc")
"""`python` is the bare interpreter, exec'd without any isolation."""


class Starter:
    """One driver process. `close` ends it and waits until it has cleaned up."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name = name
        self._process = process

    @classmethod
    def launch(cls, name: str, *command: str) -> Starter:
        """Start a driver. It is reaped by `close`."""
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        return cls(name, process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, command: str) -> dict[str, Any]:
        """The answer to one command. Raises RuntimeError when the driver has died (its words are on stderr)."""
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(command + "\n")
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"the driver of {self.name} died with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def start_ms(self) -> float:
        """Make one sandbox; ms until it was ready (floor) or had run `pass` and exited (peers)."""
        return float(sum(self.ask("start").values())) / 1e6

    def rate(self, concurrency: int, count: int) -> float:
        """Sandboxes made, finished and reaped per second."""
        return count / float(self.ask(f"rate {concurrency} {count}")["seconds"])

    def close(self) -> None:
        self._process.communicate()


@contextmanager
def floor() -> Iterator[Starter]:
    """The kernel's floor."""
    with (
        tempfile.TemporaryDirectory(prefix="sockd-floor-") as directory,
        Starter.launch("floor", PYTHON, "-I", "-S", str(HERE / "floor.py"), directory) as starter,
    ):
        yield starter


@contextmanager
def peers() -> Iterator[dict[str, Starter]]:
    """Every peer that is installed and makes one sandbox without complaint, by name."""
    with ExitStack() as stack:
        found: dict[str, Starter] = {}
        for name in PEERS:
            if name == "python" or shutil.which(name):
                directory = stack.enter_context(tempfile.TemporaryDirectory(prefix=f"sockd-{name}-"))
                driver = str(HERE / "peer_driver.py")
                starter = stack.enter_context(Starter.launch(name, PYTHON, "-I", driver, name, directory))
                if "error" not in starter.ask("check"):
                    found[name] = starter
        yield found
