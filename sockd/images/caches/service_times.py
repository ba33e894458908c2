"""How long a node takes for requests: counts in logarithmic buckets, of constant size for any number of requests."""

from __future__ import annotations

import math

STEPS = 32
"""Buckets for each power of two: a quantile is right to 2 %."""
_BUCKETS = 32 * STEPS


class ServiceTimes:
    """Times from 1 us to more than an hour."""

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self.count = 0

    def add(self, seconds: float) -> None:
        index = int(math.log2(max(seconds * 1e6, 1.0)) * STEPS)
        self._counts[min(index, _BUCKETS - 1)] += 1
        self.count += 1

    def quantile_us(self, share: float) -> float:
        """0 if nothing was counted."""
        left = share * self.count
        for index, count in enumerate(self._counts):
            left -= count
            if count and left <= 0:
                return float(2 ** ((index + 0.5) / STEPS))
        return 0.0

    def summary(self) -> dict[str, float]:
        """The count, and quantiles in microseconds."""
        quantiles = {"p50_us": 0.5, "p99_us": 0.99, "p9999_us": 0.9999}
        return {"count": self.count, **{name: round(self.quantile_us(share), 1) for name, share in quantiles.items()}}
