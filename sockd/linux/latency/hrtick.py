"""A tick of 0.5 ms on each processor, while requests come and all processors are taken.

A thread that is woken gets a processor at once, unless the scheduler owes the processor to another thread, be it by nanoseconds.
Then it waits for the scheduler's next tick, up to 4 ms. One wake-up in a hundred is like that, and a request needs four. A thread
on each processor (`kernel/native/hrtick.c`) forces the decision every 0.5 ms.

Nothing polls. The run queues are read when a request begins, every 5 ms at most; a worker with fewer than `1 / FORGETS_S`
requests a second never ticks. Under many requests or starts the processors change threads all the time, and no tick is needed.

One for a worker. Owns the threads that tick and the view of the run queues.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Self

from sockd.linux import _hrtick
from sockd.linux.processes.run_queues import RunQueues

PERIOD_NS = 500_000
"""The period of the ticks."""
LOOK_S = 0.005
"""The shortest time between two readings of the run queues; one takes 3 us."""
CROWDED_LOOKS = 4
"""Readings in a row that find all processors taken, before the first tick: others may run for a moment, too."""
LASTS_S = 0.1
"""How long a reading has the processors tick: the rest of a period (CPU_PERIOD_US), in which functions that compute use up their
quota."""
FORGETS_S = 0.2
"""Readings that are further apart are no row: between requests that are rare nothing ticks."""
REQUESTS_HZ = 1000.0
"""Requests a second for each processor; above it nothing ticks. Measured: 3000 from one connection that never pauses."""
STARTS_HZ = 75.0
"""The same bound for sandboxes that are started. Measured: 14 to 31 if each fills its memory and is killed, 140 and more if
they do nothing."""
_COARSE_CLOCK = 6
"""CLOCK_MONOTONIC_COARSE: its resolution is the scheduler's tick."""


class HrTick:
    """Call `request_begun` for each request, `start_begun` for each that needs a new sandbox."""

    def __init__(
        self,
        run_queues: RunQueues,
        processors: int,
        run_until: Callable[[int], None] = _hrtick.run_until,
    ) -> None:
        """Args: run_queues: owned from now on; processors: each has a thread, which `run_until` has tick."""
        self._run_queues: RunQueues | None = run_queues
        self._processors = max(processors, 2)  # the reader of the run queues is a runnable thread itself
        self._run_until = run_until
        self._requests = self._starts = 0
        """Since the last reading."""
        self._requests_hz = self._starts_hz = 0.0
        """Over the last LASTS_S."""
        self._read_s = 0.0
        self._crowded_looks = 0

    @classmethod
    def open(cls) -> Self:
        """Raises: OSError: the threads cannot be had, or there is no /proc."""
        processors = sorted(os.sched_getaffinity(0))
        run_queues = RunQueues.open()
        try:
            _hrtick.start(processors, PERIOD_NS)
        except OSError:
            run_queues.close()
            raise
        return cls(run_queues, len(processors))

    def request_begun(self) -> None:
        """A function is called. Reads the run queues if the last reading is LOOK_S old."""
        if self._run_queues is None:
            return
        self._requests += 1
        now_s = time.monotonic()
        passed_s = now_s - self._read_s
        if passed_s >= LOOK_S:
            self._look(self._run_queues, now_s, passed_s)

    def start_begun(self) -> None:
        """A sandbox is being started."""
        self._starts += 1

    def close(self) -> None:
        """End the threads. Safe to call twice; from then on nothing ticks."""
        run_queues, self._run_queues = self._run_queues, None
        if run_queues is not None:
            _hrtick.stop()
            run_queues.close()

    def _look(self, run_queues: RunQueues, now_s: float, passed_s: float) -> None:
        self._read_s = now_s
        self._crowded_looks = self._crowded_looks + 1 if self._is_crowded(run_queues, passed_s) else 0
        if self._crowded_looks >= CROWDED_LOOKS:
            self._run_until(int((now_s + LASTS_S) * 1e9))

    def _is_crowded(self, run_queues: RunQueues, passed_s: float) -> bool:
        """Whether all processors are taken, and not by requests. Nothing is known behind a pause."""
        requests, self._requests = self._requests, 0
        starts, self._starts = self._starts, 0
        if passed_s > FORGETS_S:
            self._requests_hz = self._starts_hz = 0.0
            return False
        share = min(passed_s / LASTS_S, 1.0)
        self._requests_hz += (requests / passed_s - self._requests_hz) * share
        self._starts_hz += (starts / passed_s - self._starts_hz) * share
        if max(self._requests_hz / REQUESTS_HZ, self._starts_hz / STARTS_HZ) > self._processors:
            return False
        return run_queues.runnable() >= self._processors


def tick_s() -> float:
    """The scheduler's, in seconds."""
    return time.clock_getres(_COARSE_CLOCK)
