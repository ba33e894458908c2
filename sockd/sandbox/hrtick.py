"""The time in which somebody computes while functions are called: processors look at who should have them many times a tick.

A thread that is woken is given a processor at once, unless somebody else is owed it, be it by nanoseconds. Then it waits for
the scheduler's next tick, up to 4 ms, as nothing makes a processor look again that computes. One in a hundred is woken like
that, and a request wakes four. So there is a tick of a higher resolution (`kernel/native/hrtick.c`) while requests come and the
processors are crowded for some looks in a row: there is a thread for each, they pass seldom from one to another, and few
sandboxes are being started. Where they pass often, as under many quick requests, they look often.

One for a worker. Owns the threads that tick and its view of the processors.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Self

from sockd.kernel import _hrtick
from sockd.kernel.run_queues import Look, RunQueues

PERIOD_NS = 500_000
"""Of the ticks."""
LOOK_S = 0.005
CROWDED_LOOKS = 4
"""In a row; fewer may be others who run for a moment, too."""
LASTS_S = 0.1
"""How long it ticks then: over the rest of a period (CPU_PERIOD_US) in which those who compute have had their time."""
QUIET_S = 1.0
"""After the last request, until nobody looks any more."""
OFTEN_HZ = 8000.0
"""Switches of one processor from one thread to another, in a second. Measured: 1300 to 4000 (a tenth to nine tenths of the looks)
beside functions that compute, if another is called 400 times a second; 14 500 and more if it is called as often as it can be. But
3800 to 11 500 with cold starts."""
STARTS_HZ = 75.0
"""Sandboxes that are started in a second for each processor: beyond, they are what takes the time, have no use for a tick
and would pay for it. Measured: 14 to 31 if each fills its memory and is killed, 140 and more if they do nothing."""
_SWITCHES_OF_A_TICK = 2
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
        self._is_noted = False
        self._starts = 0
        self._starts_hz = 0.0
        """Over the last LASTS_S."""
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_at_s = self._looked_s = self._ticks_until_s = 0.0
        self._before = Look(runnable=0, switches=0)
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
        self._is_noted = True
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
        self._crowded_looks = self._crowded_looks + 1 if self._is_crowded(now_s) else 0
        if self._crowded_looks >= CROWDED_LOOKS:
            self._ticks_until_s = now_s + LASTS_S
            self._run_until(int(self._ticks_until_s * 1e9))
        if self._is_noted:
            self._is_noted = False
            self._quiet_at_s = now_s + QUIET_S
        is_quiet = now_s > self._quiet_at_s
        self._timer = None if is_quiet else asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _is_crowded(self, now_s: float) -> bool:
        """Whether there is a thread for each processor, they keep them, and few are starts. The first time nobody knows."""
        assert self._run_queues is not None
        look, before, passed_s = self._run_queues.look(), self._before, now_s - self._looked_s
        self._before, self._looked_s = look, now_s
        starts, self._starts = self._starts, 0
        if passed_s > LASTS_S:
            self._starts_hz = 0.0
            return False
        self._starts_hz += (starts - self._starts_hz * passed_s) / LASTS_S
        if look.runnable < self._processors or self._starts_hz > STARTS_HZ * self._processors:
            return False
        often_hz = OFTEN_HZ
        if now_s < self._ticks_until_s:
            often_hz += _SWITCHES_OF_A_TICK * 1e9 / PERIOD_NS
        return look.switches - before.switches < often_hz * passed_s * self._processors


def tick_s() -> float:
    """The scheduler's, in seconds."""
    return time.clock_getres(_COARSE_CLOCK)
