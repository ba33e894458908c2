"""The last minute of each function: counted as it goes, right to a twentieth, and gone after a minute."""

from __future__ import annotations

import random

import pytest

from sockd.observe.recent import NOTHING, SLOT_NS, SLOTS, WINDOW_NS, Recent, quantile

S = 1_000_000_000
START_NS = 1000 * SLOT_NS


def test_a_function_that_was_not_invoked_has_done_nothing() -> None:
    assert Recent().of("f", START_NS) is NOTHING


def test_rates_shares_and_failures_are_those_of_the_window() -> None:
    recent = Recent()
    for n in range(100):
        recent.observe("f", START_NS + n * S // 10, 1_000_000, n < 25, n < 3)
    recent.observe("g", START_NS, 1, True, True)
    lately = recent.of("f", START_NS + 10 * S)
    assert (lately.count, lately.failed, lately.cold_share) == (100, 3, 0.25)
    assert lately.rate == pytest.approx(10)
    assert lately.rates[-3:] == (10, 10, 0) and not any(lately.rates[:-3])


def test_a_new_function_s_rate_is_not_thinned_by_a_minute_that_it_has_not_lived() -> None:
    recent = Recent()
    for _ in range(50):
        recent.observe("f", START_NS, 1_000_000, False, False)
    assert recent.of("f", START_NS + S).rate == pytest.approx(50)


def test_a_minute_later_it_is_forgotten_and_no_more_slots_are_kept_than_a_minute_has() -> None:
    recent = Recent()
    for n in range(1000):
        recent.observe("f", START_NS + n * SLOT_NS, 1_000_000, False, False)
    end_ns = START_NS + 999 * SLOT_NS
    assert recent.of("f", end_ns).count == SLOTS
    assert recent.of("f", end_ns + WINDOW_NS) is NOTHING
    recent.forget("f")
    recent.forget("f")
    assert recent.of("f", end_ns) is NOTHING


@pytest.mark.parametrize("median_ns", [100_000, 3_000_000, 900 * S])
def test_quantiles_are_right_to_a_twentieth(median_ns: int) -> None:
    recent, draw = Recent(), random.Random(7)
    durations = [int(median_ns * draw.lognormvariate(0, 1)) for _ in range(5000)]
    for duration in durations:
        recent.observe("f", START_NS, duration, False, False)
    durations.sort()
    lately = recent.of("f", START_NS + S)
    assert lately.p50_ns == pytest.approx(durations[2499], rel=0.05)
    assert lately.p99_ns == pytest.approx(durations[4949], rel=0.05)


def test_a_duration_of_nothing_is_no_error() -> None:
    recent = Recent()
    recent.observe("f", START_NS, 0, False, False)
    assert recent.of("f", START_NS).p50_ns == 1
    assert quantile({}, 0.5) == 0


def test_the_busiest_are_those_of_this_minute() -> None:
    recent = Recent()
    for name, count, at_ns in (("old", 9, START_NS - 2 * WINDOW_NS), ("some", 2, START_NS), ("most", 3, START_NS)):
        for _ in range(count):
            recent.observe(name, at_ns, 1, False, False)
    assert recent.busiest(5, START_NS + S) == ["most", "some"]
    assert recent.busiest(1, START_NS + S) == ["most"]


def test_the_total_is_that_of_all_functions_over_the_window_however_they_are_settled() -> None:
    recent = Recent()
    assert recent.total(START_NS) == (0, 0, 0)
    for n in range(100):
        recent.observe(f"f{n % 3}", START_NS + n * S, 1, n % 10 == 0, n % 20 == 0)
    now_ns = START_NS + 99 * S
    expected = recent.total(now_ns)
    counts = [recent.of(f"f{n}", now_ns) for n in range(3)]
    assert expected.requests == sum(each.count for each in counts) == 60
    assert (expected.cold, expected.failed) == (6, sum(each.failed for each in counts))
    recent.settle(now_ns + SLOT_NS)
    assert recent.total(now_ns) == expected
    assert recent.total(now_ns + 2 * WINDOW_NS) == (0, 0, 0)


def test_each_slot_is_handed_on_once_when_it_is_over() -> None:
    handed_on: list[tuple[str, int, int]] = []
    recent = Recent(lambda name, slot: handed_on.append((name, slot.started_ns, slot.count)))
    recent.observe("f", START_NS, 1, False, False)
    recent.observe("f", START_NS + 1, 1, False, False)
    recent.settle(START_NS + SLOT_NS - 1)
    assert handed_on == []
    recent.observe("f", START_NS + SLOT_NS, 1, False, False)
    recent.settle(START_NS + 2 * SLOT_NS)
    recent.settle(START_NS + 9 * SLOT_NS)
    recent.observe("g", START_NS, 1, False, False)
    recent.forget("g")
    assert handed_on == [("f", START_NS, 2), ("f", START_NS + SLOT_NS, 1), ("g", START_NS, 1)]
