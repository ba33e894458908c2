"""Placement: five distinct nodes, loads within the bound, little movement when a node is lost."""

from __future__ import annotations

import hashlib
from collections import Counter
from statistics import mean

import pytest

from sockd.images.caches.placement import PARTITIONS, Placement
from sockd.images.caches.stripes import STRIPES

SIZES = [6, 7, 10, 20]
KEYS = [partition.to_bytes(4, "big") for partition in range(PARTITIONS)]


def nodes(count: int) -> list[str]:
    return [f"10.0.0.{number}:7100" for number in range(count)]


def loads(placement: Placement) -> Counter[str]:
    return Counter(node for key in KEYS for node in placement.nodes_of(key))


@pytest.mark.parametrize("count", SIZES)
def test_a_chunk_has_five_distinct_nodes(count: int) -> None:
    placement = Placement(nodes(count))
    assert {len(set(placement.nodes_of(key))) for key in KEYS} == {STRIPES}


@pytest.mark.parametrize("count", SIZES)
def test_no_node_has_more_than_five_percent_beyond_the_mean(count: int) -> None:
    loaded = loads(Placement(nodes(count)))
    assert max(loaded.values()) <= 1.05 * STRIPES * PARTITIONS / count


@pytest.mark.parametrize("count", SIZES)
def test_a_lost_node_moves_its_share_and_little_more(count: int) -> None:
    before = Placement(nodes(count))
    moved = []
    for lost in before.nodes[:5]:
        after = Placement([node for node in before.nodes if node != lost])
        new = sum(len(set(after.nodes_of(key)) - set(before.nodes_of(key))) for key in KEYS)
        moved.append(new / (STRIPES * PARTITIONS))
    assert mean(moved) <= 1.1 / count


def test_workers_that_list_the_nodes_in_other_orders_agree() -> None:
    some = Placement(nodes(7))
    other = Placement([*reversed(nodes(7)), nodes(7)[0]])
    assert all(some.nodes_of(key) == other.nodes_of(key) for key in KEYS)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_fewer_nodes_than_stripes_hold_several_stripes_each(count: int) -> None:
    placement = Placement(nodes(count))
    for key in KEYS[:100]:
        held = Counter(placement.nodes_of(key))
        assert sum(held.values()) == STRIPES and len(held) == count
        assert max(held.values()) - min(held.values()) <= 1


def test_without_nodes_a_chunk_has_none() -> None:
    assert Placement([]).nodes_of(hashlib.sha256(b"").digest()) == ()
