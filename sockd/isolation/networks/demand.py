"""Demand: how many endpoints should be ready, from how many were taken lately.

Pure: the caller passes the time.
"""

from __future__ import annotations

import math
from collections import deque

BURST_S = 1.0
"""Starts within so long are one burst, which the pool should be enough for."""
REMEMBER_S = 60.0
"""How long a burst decides on the size."""
MARGIN = 1.25


class Demand:
    """`note` what was asked for; `wanted` says how many should be ready."""

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, max(least, most)
        self._bursts: deque[tuple[float, int]] = deque()
        """When each began, and how many it took."""

    def note(self, now_s: float) -> None:
        """One was asked for."""
        began_s, count = self._bursts[-1] if self._bursts else (-math.inf, 0)
        if now_s - began_s < BURST_S:
            self._bursts[-1] = (began_s, count + 1)
        else:
            self._bursts.append((now_s, 1))

    def wanted(self, now_s: float) -> int:
        """POLICY: a quarter more than the largest burst of the last minute took, within the limits."""
        while self._bursts and now_s - self._bursts[0][0] > REMEMBER_S:
            self._bursts.popleft()
        largest = max((count for _, count in self._bursts), default=0)
        return min(max(self._least, math.ceil(largest * MARGIN)), self._most)
