"""Quantiles of a node's service times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sockd.images.caches.service_times import ServiceTimes


@given(times_us=st.lists(st.floats(1, 1e9), min_size=1, max_size=200), share=st.sampled_from([0.01, 0.5, 0.99, 0.9999]))
def test_a_quantile_is_right_to_two_percent(times_us: list[float], share: float) -> None:
    times = ServiceTimes()
    for each in times_us:
        times.add(each / 1e6)
    ordered = sorted(times_us)
    exact = ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
    assert exact * 0.98 <= times.quantile_us(share) <= exact * 1.02


def test_nothing_counted_is_zero_and_extremes_fit() -> None:
    times = ServiceTimes()
    assert times.summary() == {"count": 0, "p50_us": 0.0, "p99_us": 0.0, "p9999_us": 0.0}
    for seconds in (0.0, 1e-9, 1e9):
        times.add(seconds)
    assert times.count == 3 and times.quantile_us(0.5) < 1.1
