"""The moment in which the loop does not sleep, because a sandbox is about to answer.

To put a loop to sleep and to wake it takes a seventh of a warm request, on an otherwise idle machine. So while one request
is under way, whose handler was quick the last time, the loop turns without sleeping, for a fraction of a millisecond at most.

One for a worker. Owns nothing.
"""

from __future__ import annotations

import asyncio
import os
import time

from sockd.sandbox.exchange import Exchange

QUICK_NS = 50_000
"""A handler that took longer is not waited for awake."""
LONGEST_NS = 150_000
"""Of which a quick answer takes 100 µs."""
REST_NS = 100_000_000
"""After one that was of no use: no answer came, as the processors have other work, or another request did, as two at a time
keep the loop awake by themselves."""


class Vigil:
    """`keep` it with each request."""

    def __init__(self) -> None:
        self._exchange: Exchange | None = None
        """The one whose answer it is kept for."""
        self._ends_ns = self._begins_ns = 0
        # With one processor it would keep the sandbox from answering.
        self._is_possible = len(os.sched_getaffinity(0)) > 1

    def keep(self, exchange: Exchange, last_ns: int, loop: asyncio.AbstractEventLoop) -> None:
        """A sandbox has been asked. Args: last_ns: how long its handler took the last time; 0: nobody knows."""
        if not self._is_possible or not 0 < last_ns <= QUICK_NS:
            return
        now_ns = time.monotonic_ns()
        if self._exchange is not None:
            self._end(now_ns + REST_NS)
        elif now_ns >= self._begins_ns:
            self._exchange, self._ends_ns = exchange, now_ns + LONGEST_NS
            loop.call_soon(self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """A turn of the loop; another follows at once."""
        exchange = self._exchange
        if exchange is None:
            return
        if exchange.is_over:
            self._end()
        elif (now_ns := time.monotonic_ns()) >= self._ends_ns:
            self._end(now_ns + REST_NS)
        else:
            loop.call_soon(self._look, loop)

    def _end(self, begins_ns: int = 0) -> None:
        """Args: begins_ns: before when there is to be no other."""
        self._exchange, self._begins_ns = None, begins_ns
