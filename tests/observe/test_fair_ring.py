"""The ring that functions share: each has as much of it as the others want to leave it."""

from __future__ import annotations

import random

import pytest

from sockd.observe.fair_ring import FairRing


def test_one_function_may_have_all_of_it() -> None:
    ring: FairRing[int] = FairRing(3)
    for number in range(10):
        ring.append("f", number)
    assert list(ring) == [7, 8, 9] and len(ring) == 3


def test_a_function_loses_only_to_those_that_have_no_more() -> None:
    ring: FairRing[str] = FairRing(4)
    for name in "aab" + "c" * 10 + "b":
        ring.append(name, name)
    assert sorted(ring) == ["a", "b", "c", "c"]


@pytest.mark.parametrize("seed", range(5))
def test_it_is_never_larger_and_always_in_order(seed: int) -> None:
    choose = random.Random(seed)
    ring: FairRing[int] = FairRing(20)
    for number in range(2000):
        ring.append(choose.choice("abcdefgh" * 5 + "x" * 100), number)
        items = list(ring)
        assert len(items) == len(ring) == min(number + 1, 20) and items == sorted(items) and items[-1] == number


def test_a_ring_without_room_keeps_nothing() -> None:
    ring: FairRing[int] = FairRing(0)
    ring.append("f", 1)
    assert list(ring) == []
