"""The time in which no processor sleeps, because a sandbox is being started.

A start wakes four processes, one after the other, and where nothing has happened for some ms each of them waits for a processor
that sleeps. So all are woken as soon as it is known that a request needs a start or a thaw, while the daemon gets that ready;
and they are let go when the answer is out.

One for a worker. Owns the request to the kernel.
"""

from __future__ import annotations

import asyncio
import time

from sockd.kernel.cpu_latency import CpuLatency

LONGEST_S = 0.01
"""How long processors are kept awake for a start that has not been answered. With its packages in a Zygote one takes 3 to 10 ms;
a function that takes longer gains nothing by it."""


class IdlePoll:
    """`begin` it with each start, `end` it once for each, when that was answered."""

    def __init__(self, latency: CpuLatency | None = None) -> None:
        """Args: latency: its own from now on; None: processors sleep as they like."""
        self._latency = latency
        self._under_way = 0
        self._is_on = False
        self._begun_s = 0.0
        """When the last one began."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """A start is under way."""
        if self._latency is None:
            return
        self._under_way += 1
        self._begun_s = time.monotonic()
        if self._is_on:
            return
        self._is_on = True
        self._latency.forbid()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LONGEST_S, self._look)

    def end(self) -> None:
        """It is over."""
        if self._latency is None:
            return
        self._under_way -= 1
        if not self._under_way:
            self._let_sleep()

    def close(self) -> None:
        """Safe to call twice; from then on it does nothing."""
        latency, self._latency = self._latency, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if latency is not None:
            latency.close()

    def _look(self) -> None:
        """Whether it has been on for long enough. The timer is left alone by what begins and ends: it costs each start less."""
        self._timer = None
        if not self._is_on:
            return
        left_s = self._begun_s + LONGEST_S - time.monotonic()
        if left_s <= 0:
            self._let_sleep()
        else:
            self._timer = asyncio.get_running_loop().call_later(left_s, self._look)

    def _let_sleep(self) -> None:
        if self._is_on and self._latency is not None:
            self._is_on = False
            self._latency.allow()
