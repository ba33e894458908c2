"""The test's end of a worker with failpoints (`tests/support/failing.py`): what is to fail next, and whether it did.

Owns a TCP port on loopback and the thread that answers on it. Everything that asks and is not planned for goes on.
"""

from __future__ import annotations

import errno
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Plan:
    """One failpoint: at a step of a kind of work, so many times."""

    kind: str
    step: str
    action: str
    times: int
    errno: int
    nth: int
    reached: int = 0
    """How often it was."""
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, kind: str) -> str:
        """What an asker gets: empty, or "action errno nth step"."""
        with self._changed:
            if kind != self.kind or self.times <= 0:
                return ""
            self.times -= 1
            return f"{self.action} {self.errno} {self.nth} {self.step}"

    def note(self, step: str) -> None:
        with self._changed:
            self.reached += step == self.step
            self._changed.notify_all()

    def wait(self, deadline_s: float = 60.0) -> bool:
        """True when it was reached, before the deadline."""
        with self._changed:
            return self._changed.wait_for(lambda: self.reached > 0, deadline_s)


class Plans:
    """The port. One plan at a time."""

    def __init__(self) -> None:
        plans = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                word, _, rest = self.rfile.readline().decode().strip().partition(" ")
                self.wfile.write(plans._answer(word, rest).encode() + b"\n")

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            request_queue_size = 256

        self.offset_s = 0.0
        """How far the daemon's wall clock is ahead."""
        self._plan: Plan | None = None
        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def command(self) -> tuple[str, ...]:
        """What starts the worker, without its address."""
        return self.command_without("")

    def command_without(self, protection: str) -> tuple[str, ...]:
        """The same for one that lacks a protection (`broken.py`), if that is not ""."""
        program = ("-m", "tests.support.failing", f"{self.port},{protection}")
        return (sys.executable, *program, "up", "--listen", "127.0.0.1:0")

    @contextmanager
    def failing(
        self, kind: str, step: str, action: str, *, times: int = 1, error: int = errno.EIO, nth: int = 1
    ) -> Iterator[Plan]:
        """Until the end of the block, have the next `times` works of a kind fail at a step.

        Args:
            kind: "start", "provision" (of the daemon), "sandbox", "zygote" (of a Zygote);
            action: "error", "hang", "kill"; nth: of the step's calls, the daemon's own only."""
        self._plan = plan = Plan(kind, step, action, times, error, nth)
        try:
            yield plan
        finally:
            self._plan = None

    def _answer(self, word: str, rest: str) -> str:
        if word == "clock":
            return str(self.offset_s)
        plan = self._plan
        if plan is None:
            return ""
        if word == "reached":
            plan.note(rest)
            return ""
        return plan.take(word)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
