"""What the program of a service prints, as records of its function's log.

Owns the timer of the next record. A program may print at any time, so that its output is no part of a request's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from sockd.base.telemetry import LogRecord
from sockd.isolation.sandbox.output import Output

GATHERED_S = 0.2
"""How long output is gathered for one record."""

NoteLog = Callable[[LogRecord], None]
"""Takes a record of a service."""


class ServiceLog:
    """The records of one running program. `follow` while it runs; `end` with the last of its output."""

    def __init__(self, function: str, version: str, run_id: str, note: NoteLog) -> None:
        """Args: version: its number; run_id: names the run of the program, in each of its records."""
        self._function = function
        self._version = version
        self._run_id = run_id
        self._note = note
        self._output: Output | None = None
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, output: Output) -> None:
        """Make records of what is printed from now on, and of what was printed before."""
        self._output = output
        output.deliver(self._await_more)

    def add(self, text: bytes) -> None:
        """Make a record of something else than output."""
        self._record(text, 0)

    def end(self, text: bytes, dropped: int) -> None:
        """Make the last record. Args: text: what no record has yet; dropped: how many bytes of it were too many."""
        if self._timer is not None:
            self._timer.cancel()
        self._record(text, dropped)

    def _await_more(self, kept: bytearray) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHERED_S, self._gather)

    def _gather(self) -> None:
        self._timer = None
        if self._output is not None:
            self._record(*self._output.take())

    def _record(self, text: bytes, dropped: int) -> None:
        if text or dropped:
            self._note(LogRecord(self._run_id, time.time(), text, dropped, self._function, self._version))
