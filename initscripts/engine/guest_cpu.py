"""A guest's processor time: how much of it a guest may have, and when.

    POLICY: scripts need less than 5 ms of it. A guest that has used `SLOW_NS` is slow: it computes only where nothing else of the
    engine wants the processor (SCHED_IDLE), and slow guests compute one at a time, so that however many there are, they take
    one processor from the functions. A guest that has used its budget is stopped.

      quick ─ used SLOW_NS ─ slow, waits for its turn ─ slow, computes ─ used its budget ─ stopped
                                  ╰──────◄── calls a host function ──◄──╯

The engine's loop looks at all guests at the same ticks, which disturbs none of them. Owns the order of slow guests. The thread
of a slow guest has to be replaced afterwards: without privileges it cannot have its priority back.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque

from sockd_initscripts.engine.signals import LoopCalls, Signal, Waiting

SLOW_NS = 10_000_000
TICK_S = 0.01


def until_tick_s(now_s: float) -> float:
    """The time from one moment (time.monotonic) to the first tick that is a whole tick later."""
    return (math.floor(now_s / TICK_S) + 2) * TICK_S - now_s


class Turns:
    """Which of the slow guests computes. All methods are the loop's."""

    def __init__(self) -> None:
        self._waiting: deque[Signal] = deque()
        """The first one has its turn."""

    def enter(self, turn: Signal) -> None:
        """Queue for a turn, and set the signal when it has come."""
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            turn.set()

    def leave(self, turn: Signal) -> None:
        """Give a turn up, also one that has not come."""
        self._waiting.remove(turn)
        if self._waiting:
            self._waiting[0].set()


class GuestCpu:
    """The processor time of one guest. Made in its thread."""

    def __init__(self, turns: Turns, calls: LoopCalls, waiting: Waiting) -> None:
        self._turns = turns
        self._calls = calls
        self._waiting = waiting
        self._turn: Signal | None = None
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._before_ns = time.clock_gettime_ns(self._clock)
        self.is_slow = False

    def used_ns(self) -> int:
        """The time that it has used, in ns; in any thread."""
        return time.clock_gettime_ns(self._clock) - self._before_ns

    def slow_down(self) -> None:
        """On the loop: make it slow, which its thread notices at the next epoch and after the next call."""
        self.is_slow = True

    def begin_computing(self) -> None:
        """In the guest's thread, before a slow guest computes: wait for its turn, or until its run is stopped."""
        if self._turn is not None:
            return
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        self._turn = turn = Signal()
        self._calls.post(self._turns.enter, turn)
        self._waiting.wait_for(turn)

    def stop_computing(self) -> None:
        """In the guest's thread: it waits for something, or ends. Another may compute."""
        if self._turn is not None:
            self._calls.post(self._turns.leave, self._turn)
            self._turn = None
