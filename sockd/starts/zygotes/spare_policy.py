"""POLICY: the number of spares of a Zygote. Pure; owns nothing, forks nothing.

A taken spare is replaced after `refill_s`. With starts arriving at random at a rate r, the number of replacements under
way is Poisson with mean r x refill_s (M/G/infinity; Little's law gives the mean), so n spares are all gone with
probability P(N >= n). The answer is the smallest n that keeps this below `MISS`, within the cap. If starts are rare it is
the minimum (`least_spares`), so that a function called after minutes gets a spare.
"""

from __future__ import annotations

from math import exp

MISS = 0.01
"""Accepted share of starts that find no spare."""
KEEP_S = 60.0
"""Beyond the least, a spare that is not expected to be taken within this time is not kept."""


def wanted_spares(
    rate_per_s: float,
    refill_s: float,
    cap: int,
    *,
    least: int = 0,
    idle_s: float = 0.0,
    memory_pressure: bool = False,
) -> int:
    """POLICY: ready children to keep for a Zygote.

    Args:
        rate_per_s: sandboxes started from it per second, recently.
        refill_s: time to make a spare ready, measured.
        cap: most that the configuration allows; 0 switches spares off.
        least: kept however rare starts are, unless memory is short.
        idle_s: time since the last start from it.
        memory_pressure: True when the memory budget has starts waiting or is nearly spent.
    Returns: 0 under pressure; `least` when idle for KEEP_S, or when none is expected to be taken within KEEP_S."""
    if cap <= 0 or memory_pressure:
        return 0
    least = min(least, cap)
    if idle_s >= KEEP_S or rate_per_s * KEEP_S < 1.0:
        return least
    mean = rate_per_s * max(refill_s, 0.0)
    # P(N = 0) underflows for means no cap can serve anyway.
    term = exp(-min(mean, 700.0))
    below = 0.0
    for count in range(1, cap + 1):
        below += term
        if 1.0 - below <= MISS:
            return max(count, least)
        term *= mean / count
    return cap
