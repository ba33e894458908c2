"""Counts that other programs of the machine can only raise: the least of a few tries is the count. And how slow they make all."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
TRIES = 4
MOST_SLOWNESS = 4.0
"""What a limit is multiplied by at most, so that it still finds what is late for another reason than the machine."""


def at_least_once(measure: Callable[[], T], holds: Callable[[T], bool], *, tries: int = TRIES) -> T:
    """What a measurement gave when it held, of so many at most. Raises: AssertionError, with all that were seen."""
    seen = []
    for _ in range(tries):
        seen.append(measure())
        if holds(seen[-1]):
            return seen[-1]
    raise AssertionError(f"never in {tries} tries: {seen}")


def slowness(work_s: float = 0.05) -> float:
    """How long a second of processor time takes now: 1 s on an idle machine, 3 s where three programs share a processor."""
    begun_s, used_s = time.monotonic(), time.thread_time()
    while time.thread_time() < used_s + work_s:
        pass
    return min(max(1.0, (time.monotonic() - begun_s) / work_s), MOST_SLOWNESS)
