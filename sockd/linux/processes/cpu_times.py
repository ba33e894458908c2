"""CPU time of threads, and how long they were ready to run and had no CPU (/proc/TID/schedstat, scheduler/sched-stats).

Owns nothing. Nothing is read before it is asked for: the kernel keeps these numbers anyhow.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

MOST_THREADS = 64
"""Read at most, in the order of the kernel's list, of which the oldest is the first: each takes 10 us."""


class CpuTimes(NamedTuple):
    """The times of a group of threads, in ns."""

    used_ns: int
    """CPU time of all."""
    delayed_ns: int
    """The delay of the thread that waited longest. Waiting for the end of its own quota's period is included."""


def read_cpu_times(thread_ids: Iterable[int]) -> CpuTimes:
    """Read the times of the threads that live. Raises nothing: a kernel without CONFIG_SCHED_INFO has zeros."""
    used_ns = delayed_ns = 0
    for thread_id in islice(thread_ids, MOST_THREADS):
        with suppress(OSError, ValueError):
            with open(f"/proc/{thread_id}/schedstat", encoding="ascii") as file:
                used, delayed, _ = map(int, file.read().split())
            used_ns += used
            delayed_ns = max(delayed_ns, delayed)
    return CpuTimes(used_ns, delayed_ns)
