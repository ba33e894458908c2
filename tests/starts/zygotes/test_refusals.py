"""How long a distribution is kept out of Zygotes."""

from __future__ import annotations

import json

import pytest

from sockd.starts.zygotes.top_levels.refusals import (
    AFTER_DEADLINE_S,
    AFTER_FAILURE_S,
    LONGEST_S,
    MAX_REFUSALS,
    Refusals,
)


class Clock:
    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_refusal_names_module_node_and_cause_and_the_first_one_stands() -> None:
    clock = Clock()
    refused = Refusals(clock)
    refused.refuse("b", "crashed", module="b.core", node="a, b")
    clock.now_s += 1
    refused.refuse("a", "hung")
    refused.refuse("b", "again")
    assert [(each.key, each.reason, each.node) for each in refused.list()] == [
        ("b", "b.core: crashed", "a, b"),
        ("a", "hung", ""),
    ]
    assert refused.is_refused("b") and refused.keys == frozenset("ab")


@pytest.mark.parametrize(("by_deadline", "first_s"), [(True, AFTER_DEADLINE_S), (False, AFTER_FAILURE_S)])
def test_a_refusal_ends_and_each_further_one_takes_twice_as_long(by_deadline: bool, first_s: float) -> None:
    clock = Clock()
    refused = Refusals(clock)
    for _ in range(12):
        refusal = refused.refuse("a", "failed", by_deadline=by_deadline)
        assert refusal.retry_s - clock.now_s == min(first_s * 2 ** (refusal.tries - 1), LONGEST_S)
        clock.now_s = refusal.retry_s - 1
        assert refused.keys == {"a"}
        clock.now_s += 1
        assert refused.keys == frozenset() and refused.list() == []
    assert refusal.tries == 12


def test_a_forgiven_package_begins_anew() -> None:
    refused = Refusals(Clock())
    refused.refuse("a", "hung", by_deadline=True)
    assert refused.is_refused("a")
    assert refused.forgive("a") and not refused.forgive("never refused")
    assert not refused.is_refused("a")
    assert refused.refuse("a", "hung").tries == 1


def test_failures_are_counted_across_restarts_and_no_clock_makes_them_longer() -> None:
    clock = Clock()
    refused = Refusals(clock)
    clock.now_s = refused.refuse("a", "hung", by_deadline=True).retry_s
    refused.refuse("a", "hung", by_deadline=True)
    data = json.loads(json.dumps(refused.to_json()))
    clock.now_s -= 1e6
    after = Refusals(clock)
    after.update_from_json(data)
    assert after.list()[0].tries == 2
    assert after.list()[0].retry_s <= clock.now_s + 2 * AFTER_DEADLINE_S


@pytest.mark.parametrize(
    "row", [["a"], ["a", 1, "", "", True, 1.0, 1], ["a", "", "", "", 1, 1.0, 1], ["a", "", "", "", True, 1.0, 0], 5]
)
def test_what_is_no_record_is_refused(row: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        Refusals().update_from_json([row])  # type: ignore[list-item]


def test_the_record_is_bounded() -> None:
    refused = Refusals(Clock())
    for number in range(MAX_REFUSALS + 5):
        refused.refuse(str(number), "failed")
    assert len(refused.list()) == MAX_REFUSALS
    assert not refused.is_refused("0") and refused.is_refused(str(MAX_REFUSALS + 4))
