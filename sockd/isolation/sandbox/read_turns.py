"""Scheduling of sandboxes that send more than one loop iteration handles.

An iteration reads at most 64 KB of one sandbox and handles at most 128 of its frames. A sandbox that sends more, or wakes the
loop too often with little data, waits in one of two queues. Each queue admits as many as fill one iteration, in order, so that
a hundred such sandboxes delay others no more than one:

    bulk    many bytes: consecutive iterations, because a client waits for this answer
    small   many small frames or writes: one turn per millisecond, because they cost the daemon more than the sender

Owns the queues. Knows neither frames nor logs: it calls a reader when it may continue.
"""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from typing import Protocol

READ_BYTES = 1 << 16
"""At a time. Under malloc's mmap threshold: a larger buffer would be mapped and unmapped for each answer."""
FRAMES_PER_TURN = 128
"""The most frames of one sandbox in a turn. Each takes 1 to 1.5 µs; with pieces of 512 bytes and more a whole read fits."""
UNITS = 128
"""The units of work in one turn of a queue: a unit is a frame, or a kilobyte."""
LEAST_UNITS = 8
"""What going on takes by itself: system calls, and waking who takes what was read."""
SMALL_PAUSE_S = 0.001
QUICK_NS = 1_000_000
"""A small read so soon after the one before it is one of a series."""
LONGEST_SERIES = 16
"""Small reads in a series that are done at once: what a function sends piece by piece is passed on without delay up to here."""


class Waiting(Protocol):
    """A reader whose turn comes."""

    def go_on(self) -> int:
        """Read, and wait again if there may be more; returns how many bytes or frames it was, in units."""


class Queue:
    """Waiting items in order, each at most once."""

    def __init__(self, pause_s: float) -> None:
        """Args: pause_s: between two turns; 0: one in each turn of the loop."""
        self._pause_s = pause_s
        self._waiting: dict[Waiting, None] = {}
        self._is_due = False

    def wait(self, waiting: Waiting) -> None:
        """Have it go on when its turn has come."""
        self._waiting[waiting] = None
        if not self._is_due:
            self._schedule()

    def _schedule(self) -> None:
        self._is_due = True
        loop = asyncio.get_running_loop()
        if self._pause_s:
            loop.call_later(self._pause_s, self._next)
        else:
            loop.call_soon(self._next)

    def _next(self) -> None:
        units = UNITS
        try:
            for waiting in list(islice(self._waiting, UNITS // LEAST_UNITS)):
                if units <= 0:
                    break
                del self._waiting[waiting]
                units -= max(waiting.go_on(), LEAST_UNITS)
        finally:
            self._is_due = False
            if self._waiting:
                self._schedule()


class ReadTurns:
    """The two queues of one worker."""

    def __init__(self) -> None:
        self.bulk = Queue(0.0)
        self.small = Queue(SMALL_PAUSE_S)


class Series:
    """Small reads of one descriptor that follow each other quickly."""

    def __init__(self) -> None:
        self._length = 0
        self._last_ns = 0

    def is_too_long(self) -> bool:
        """Called after each small read: whether there were too many in quick succession."""
        now_ns = time.monotonic_ns()
        self._length = self._length + 1 if now_ns - self._last_ns < QUICK_NS else 0
        self._last_ns = now_ns
        return self._length > LONGEST_SERIES
