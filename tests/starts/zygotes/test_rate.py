"""Decaying rates."""

from __future__ import annotations

import pytest

from sockd.starts.zygotes.rate import DecayingRate, DemandMeter


def test_a_steady_rate_is_found() -> None:
    rate = DecayingRate(100.0)
    for tick in range(5000):
        rate.hit(tick / 10)
    assert rate.at(500.0) == pytest.approx(10.0, rel=0.02)


def test_a_rate_decays_with_its_time_constant() -> None:
    rate = DecayingRate(100.0, now_s=0.0, rate=1.0)
    assert rate.at(100.0) == pytest.approx(0.3679, rel=1e-3)


def test_a_clock_that_runs_backwards_adds_nothing() -> None:
    rate = DecayingRate(100.0, now_s=50.0, rate=1.0)
    assert rate.at(0.0) == 1.0


def test_the_sets_most_in_demand_come_first() -> None:
    meter = DemandMeter(100.0)
    for closure in ("a", "b", "b", "c", "c", "c"):
        meter.hit(frozenset(closure), 1.0)
    assert [sorted(demand.closure) for demand in meter.top(2, 1.0)] == [["c"], ["b"]]
    assert meter.rate(frozenset("c"), 1.0) == pytest.approx(0.03)
    assert meter.rate(frozenset("unknown"), 1.0) == 0.0


def test_the_set_that_is_asked_for_is_among_busier_ones() -> None:
    meter = DemandMeter(100.0)
    for closure in ("a", "b", "b", "c", "c", "c"):
        meter.hit(frozenset(closure), 1.0)
    assert [sorted(demand.closure) for demand in meter.top(1, 1.0, frozenset("a"))] == [["c"], ["a"]]
    assert [sorted(demand.closure) for demand in meter.top(1, 1.0, frozenset("c"))] == [["c"]]
    assert [sorted(demand.closure) for demand in meter.top(1, 1.0, frozenset("unknown"))] == [["c"]]


def test_the_sets_least_in_demand_are_forgotten_beyond_the_bound() -> None:
    meter = DemandMeter(100.0, max_sets=4)
    for _ in range(3):
        meter.hit(frozenset("p"), 0.0)
    for closure in "abcdefgh":
        meter.hit(frozenset(closure), 1.0)
    demands = meter.top(100, 1.0)
    assert len(demands) <= 4
    assert demands[0].closure == frozenset("p")
