"""How many ready children a Zygote keeps."""

from __future__ import annotations

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.starts.zygotes.spare_policy import KEEP_S, MISS, wanted_spares


@pytest.mark.parametrize(
    ("rate", "refill", "wanted"),
    # From tables of the Poisson distribution: means 0.0005, 0.005, 0.05, 0.5 (P(N>=3) = 1.4 %), 2 (P(N>=6) = 1.7 %).
    [(0.1, 0.005, 1), (1.0, 0.005, 1), (10.0, 0.005, 2), (100.0, 0.005, 4), (400.0, 0.005, 7)],
)
def test_spares_follow_the_rate(rate: float, refill: float, wanted: int) -> None:
    assert wanted_spares(rate, refill, 16) == wanted


def test_the_cap_holds_whatever_the_rate() -> None:
    assert wanted_spares(1e6, 1.0, 4) == 4


def test_no_cap_no_spares() -> None:
    assert wanted_spares(100.0, 0.005, 0) == 0


def test_a_zygote_idle_for_long_keeps_none() -> None:
    assert wanted_spares(100.0, 0.005, 4, idle_s=KEEP_S) == 0
    assert wanted_spares(0.0, 0.005, 4) == 0
    assert wanted_spares(0.5 / KEEP_S, 0.005, 4) == 0


@pytest.mark.parametrize(("least", "cap", "kept"), [(1, 4, 1), (3, 4, 3), (5, 4, 4), (1, 0, 0)])
def test_some_are_kept_however_rare_starts_are(least: int, cap: int, kept: int) -> None:
    assert wanted_spares(0.0, 0.005, cap, least=least, idle_s=10 * KEEP_S) == kept
    assert wanted_spares(0.5 / KEEP_S, 0.005, cap, least=least) == kept
    assert wanted_spares(0.1, 0.005, cap, least=least) == max(kept, min(1, cap))
    assert wanted_spares(0.0, 0.005, cap, least=least, memory_pressure=True) == 0


def test_memory_pressure_takes_them_all() -> None:
    assert wanted_spares(100.0, 0.005, 4, memory_pressure=True) == 0


@given(st.floats(0.1, 1000), st.floats(0.001, 0.1))
def test_the_answer_is_the_least_that_misses_seldom_enough(rate: float, refill: float) -> None:
    wanted = wanted_spares(rate, refill, 1000)
    assert missing(rate * refill, wanted) <= MISS * 1.001
    assert wanted == 1 or missing(rate * refill, wanted - 1) > MISS * 0.999


@given(st.floats(0, 1000), st.floats(0, 1000), st.floats(0, 0.1), st.integers(0, 20))
def test_a_higher_rate_never_wants_fewer(rate: float, more: float, refill: float, cap: int) -> None:
    assert wanted_spares(rate, refill, cap) <= wanted_spares(rate + more, refill, cap) <= cap


def missing(mean: float, spares: int) -> float:
    """P(N >= spares) for N Poisson with that mean."""
    term, below = exp(-mean), 0.0
    for count in range(spares):
        below += term
        term *= mean / (count + 1)
    return 1.0 - below
