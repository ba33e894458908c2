"""The time in which somebody computes while functions are called: processors look at who should have them many times a tick.

A thread that is woken is given a processor at once, unless somebody else is owed it, be it by nanoseconds. Then it waits for
the scheduler's next tick, up to 4 ms, as nothing makes a processor look again that computes. One in a hundred is woken like
that, and a request wakes four. So there is a tick of a higher resolution (`kernel/native/hrtick.c`) while requests come and the
processors are crowded for some looks in a row: there is a thread for each, while not so many requests or starts come that it is
for them. Under those a processor passes from one thread to another all the time, and looks by itself.

One for a worker. Owns the threads that tick and its view of the processors.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Self

from sockd.kernel import _hrtick
from sockd.kernel.run_queues import RunQueues

PERIOD_NS = 500_000
"""Of the ticks."""
LOOK_S = 0.005
CROWDED_LOOKS = 4
"""In a row; fewer may be others who run for a moment, too."""
LASTS_S = 0.1
"""How long it ticks then: over the rest of a period (CPU_PERIOD_US) in which those who compute have had their time."""
QUIET_S = 1.0
"""After the last request, until nobody looks any more."""
REQUESTS_HZ = 1000.0
"""Requests in a second for each processor: beyond, there is no tick. Measured: 3000 from one connection that never pauses."""
STARTS_HZ = 75.0
"""Sandboxes that are started in a second for each processor: likewise. They would pay for a tick and gain nothing. Measured:
14 to 31 if each fills its memory and is killed, 140 and more if they do nothing."""
_COARSE_CLOCK = 6
"""CLOCK_MONOTONIC_COARSE: its resolution is the scheduler's tick."""


class HrTick:
    """`note` each request."""

    def __init__(
        self,
        run_queues: RunQueues | None = None,
        processors: int = 1,
        run_until: Callable[[int], None] = _hrtick.run_until,
    ) -> None:
        """Args: run_queues: its own from now on; None: nothing is done; processors: on each of them there is a thread, which
        `run_until` has tick."""
        self._run_queues = run_queues
        self._processors = max(processors, 2)  # who looks is a thread, too
        self._run_until = run_until
        self._requests = self._starts = 0
        self._requests_hz = self._starts_hz = 0.0
        """Over the last LASTS_S."""
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_at_s = self._looked_s = 0.0
        self._crowded_looks = 0

    @classmethod
    def open(cls) -> Self:
        """Raises: OSError: no threads can be had, or no /proc."""
        processors = sorted(os.sched_getaffinity(0))
        run_queues = RunQueues.open()
        try:
            _hrtick.start(processors, PERIOD_NS)
        except OSError:
            run_queues.close()
            raise
        return cls(run_queues, len(processors))

    def note(self, *, is_start: bool) -> None:
        """A sandbox is asked something. Args: is_start: it is a new one."""
        self._requests += 1
        self._starts += is_start
        if self._timer is None and self._run_queues is not None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def close(self) -> None:
        """End the threads. Safe to call twice; from then on it does nothing."""
        run_queues, self._run_queues = self._run_queues, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if run_queues is not None:
            _hrtick.stop()
            run_queues.close()

    def _look(self) -> None:
        now_s = time.monotonic()
        if self._requests:
            self._quiet_at_s = now_s + QUIET_S
        self._crowded_looks = self._crowded_looks + 1 if self._is_crowded(now_s) else 0
        if self._crowded_looks >= CROWDED_LOOKS:
            self._run_until(int((now_s + LASTS_S) * 1e9))
        is_quiet = now_s > self._quiet_at_s
        self._timer = None if is_quiet else asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _is_crowded(self, now_s: float) -> bool:
        """Whether there is a thread for each processor, and few are requests. The first time nobody knows."""
        assert self._run_queues is not None
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        requests, self._requests = self._requests, 0
        starts, self._starts = self._starts, 0
        if passed_s > LASTS_S:
            self._requests_hz = self._starts_hz = 0.0
            return False
        self._requests_hz += (requests - self._requests_hz * passed_s) / LASTS_S
        self._starts_hz += (starts - self._starts_hz * passed_s) / LASTS_S
        if max(self._requests_hz / REQUESTS_HZ, self._starts_hz / STARTS_HZ) > self._processors:
            return False
        return self._run_queues.runnable() >= self._processors


def tick_s() -> float:
    """The scheduler's, in seconds."""
    return time.clock_getres(_COARSE_CLOCK)
