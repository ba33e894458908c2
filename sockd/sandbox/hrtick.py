"""The time in which a function computes and others are called: processors look at who should have them many times a tick.

A thread that is woken is given a processor at once, unless somebody else is owed it, be it by nanoseconds. Then it waits for
the scheduler's next tick, up to 4 ms, as nothing makes a processor look again that computes. One in a hundred is woken like
that, and a request wakes four. So there is a tick of a higher resolution (`kernel/native/hrtick.c`) where all of this holds: a
request has been under way for long, others have come in the last second, there is a thread for each processor, and
processors pass seldom from one to another; where they do that often, they look often.

One for a worker. Owns the threads that tick and its view of the processors.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Self
from weakref import WeakKeyDictionary

from sockd.kernel import _hrtick
from sockd.kernel.run_queues import Look, RunQueues
from sockd.sandbox.exchange import Exchange

PERIOD_NS = 500_000
"""Of the ticks."""
LOOK_S = 0.005
LASTS_S = 0.1
"""How long it ticks after a look that has found that it is needed: over the rest of a period (CPU_PERIOD_US) in which those who
compute have had their time."""
LONG_S = 0.01
"""How long a request is under way that may be one that computes."""
QUIET_S = 1.0
"""After the last request that came, until nobody looks any more."""
OFTEN_HZ = 8000.0
"""Switches of one processor from one thread to another, in a second. Measured: below 3000 while others compute and a neighbour
is called 400 times a second; 22 000 with sixty-four connections that ask as fast as they can."""
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
        self._processors = processors
        self._run_until = run_until
        self._asked: dict[object, Exchange] = {}
        """The last one of each sandbox that was asked since the last look."""
        self._under_way: WeakKeyDictionary[Exchange, float] = WeakKeyDictionary()
        """Those that a look has found, oldest first, and when it was; weak, as there need not be another look behind its end."""
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_at_s = self._looked_s = self._ticks_until_s = 0.0
        self._before = Look(runnable=0, switches=0)

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

    def note(self, sandbox: object, exchange: Exchange) -> None:
        """A sandbox is asked something."""
        if self._run_queues is None:
            return
        self._asked[sandbox] = exchange
        if self._timer is None:
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
        is_long = self._is_long_under_way(now_s)
        if self._under_way and self._is_crowded(now_s) and is_long:
            self._ticks_until_s = now_s + LASTS_S
            self._run_until(int(self._ticks_until_s * 1e9))
        is_over = now_s > self._quiet_at_s
        self._timer = None if is_over else asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _is_long_under_way(self, now_s: float) -> bool:
        asked, self._asked = self._asked, {}
        if asked:
            self._quiet_at_s = now_s + QUIET_S
        for over in [each for each in self._under_way if each.is_over]:
            del self._under_way[over]
        self._under_way.update((each, now_s) for each in asked.values() if not each.is_over)
        return now_s - next(iter(self._under_way.values()), now_s) >= LONG_S

    def _is_crowded(self, now_s: float) -> bool:
        """Whether all processors are taken, by threads that keep them; the one that looks may be one of the threads. The first
        time nobody knows."""
        assert self._run_queues is not None
        look, before, passed_s = self._run_queues.look(), self._before, now_s - self._looked_s
        self._before, self._looked_s = look, now_s
        if look.runnable < self._processors or passed_s > LASTS_S:
            return False
        often_hz = OFTEN_HZ
        if now_s < self._ticks_until_s:
            often_hz += _SWITCHES_OF_A_TICK * 1e9 / PERIOD_NS
        return look.switches - before.switches < often_hz * passed_s * self._processors


def tick_s() -> float:
    """The scheduler's, in seconds."""
    return time.clock_getres(_COARSE_CLOCK)
