"""A trace of calls with the skew that real ones have: functions by Zipf, at random times, of random length. Pure.

The same arguments give the same trace, so that the real group and the model are asked the same.
"""

from __future__ import annotations

import random
from bisect import bisect
from itertools import accumulate
from typing import NamedTuple

MEDIAN_S, SIGMA = 0.02, 1.0
"""The length of a call, log-normal."""
LONGEST_S = 1.0


class Call(NamedTuple):
    """One call."""

    at_s: float
    """After the beginning."""
    function: int
    seconds: float
    """How long the function takes."""


def zipf_trace(functions: int, calls: int, rate_per_s: float, *, seed: int = 1) -> list[Call]:
    """Return calls of which the n-th function gets 1/n of what the first gets, at Poisson times."""
    rng = random.Random(seed)
    cumulative = list(accumulate(1.0 / rank for rank in range(1, functions + 1)))
    made, now = list[Call](), 0.0
    for _ in range(calls):
        now += rng.expovariate(rate_per_s)
        function = min(bisect(cumulative, rng.random() * cumulative[-1]), functions - 1)
        made.append(Call(now, function, min(MEDIAN_S * rng.lognormvariate(0, SIGMA), LONGEST_S)))
    return made
