"""Counts that other programs of the machine can only raise: the least of a few tries is the count."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
TRIES = 4


def at_least_once(measure: Callable[[], T], holds: Callable[[T], bool], *, tries: int = TRIES) -> T:
    """What a measurement gave when it held, of so many at most. Raises: AssertionError, with all that were seen."""
    seen = []
    for _ in range(tries):
        seen.append(measure())
        if holds(seen[-1]):
            return seen[-1]
    raise AssertionError(f"never in {tries} tries: {seen}")
