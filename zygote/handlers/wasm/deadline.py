"""The deadline of a guest: at its end the guest is interrupted where it computes, so that its sandbox lives on.

A thread sleeps until the deadline of a request. It is not woken by requests that end in time: it looks when it wakes, as
`sockd.isolation.sandbox.deadline` does. It begins with the first request, as a template must be forked without threads.

Owns the thread. What waits in a system call is not interrupted; the worker ends that by killing the sandbox.
"""

from __future__ import annotations

import _thread
import time

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable


class Deadline:
    """`set` before a guest runs, `clear` after it."""

    def __init__(self, interrupt: Callable[[], object]) -> None:
        """Args: interrupt: ends the guest that runs now, from another thread."""
        self._interrupt = interrupt
        self._lock = _thread.allocate_lock()
        self._bell = _thread.allocate_lock()
        """Released to wake the thread."""
        self._at_ns = 0
        """The deadline, of CLOCK_MONOTONIC; 0: nothing runs."""
        self._looks_ns = 0
        """The time at which the thread looks; 0: when it is woken."""
        self._has_thread = False

    def set(self, at_ns: int) -> None:
        """Interrupt what runs at this time."""
        with self._lock:
            self._at_ns = at_ns
            if self._looks_ns and self._looks_ns <= at_ns:
                return
            if not self._has_thread:
                self._has_thread = True
                self._bell.acquire()
                _thread.start_new_thread(self._watch, ())
            elif self._bell.locked():
                self._bell.release()

    def clear(self) -> None:
        """Nothing runs any more."""
        with self._lock:
            self._at_ns = 0

    def _watch(self) -> None:
        while True:
            with self._lock:
                left_ns = self._at_ns - time.monotonic_ns() if self._at_ns else 0
                if self._at_ns and left_ns <= 0:
                    self._at_ns = 0
                    self._interrupt()
                self._looks_ns = self._at_ns
            self._bell.acquire(True, left_ns / 1e9 if left_ns > 0 else -1)
