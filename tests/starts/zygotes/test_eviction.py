"""Which Zygotes go when memory is short."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.starts.zygotes.eviction import (
    Evict,
    NodeStats,
    measured_benefit,
    released_heuristic,
    room_needed,
    sock_heuristic,
    worth_making,
)
from sockd.starts.zygotes.selection import NewNode, TreeLimits

MB = 1 << 20
ROOT = NodeStats("root", None, frozenset(), 10 * MB, 1.0, 0.0)
RULES: tuple[Evict, ...] = (sock_heuristic, released_heuristic, measured_benefit)
every_rule = pytest.mark.parametrize("rule", RULES)


def zygote(imports: str, *, mb: int = 10, rate: float = 0.1, saved: float = 0.1, parent: str = "root") -> NodeStats:
    return NodeStats(imports, parent, frozenset(imports.split()), mb * MB, rate, saved, hits=int(rate * 1000))


def new_node(mb: int, benefit: float) -> NewNode:
    return NewNode("root", frozenset({"new"}), frozenset({"new"}), 0.1, 0.1, benefit, mb * MB)


@every_rule
def test_nothing_goes_when_nothing_is_needed(rule: Evict) -> None:
    assert rule([ROOT, zygote("a")], 0, 0.0) == []


@every_rule
def test_the_root_is_never_evicted(rule: Evict) -> None:
    assert rule([ROOT, zygote("a")], 1 << 40, 0.0) == ["a"]


@every_rule
def test_a_node_being_made_and_a_pinned_one_are_never_evicted(rule: Evict) -> None:
    nodes = [ROOT, replace(zygote("a"), provisioning=True), replace(zygote("b"), pinned=True)]
    assert rule(nodes, 1, 0.0) == []


@every_rule
def test_no_more_go_than_are_needed(rule: Evict) -> None:
    nodes = [ROOT, zygote("a"), zygote("b"), zygote("c")]
    assert len(rule(nodes, 20 * MB, 0.0)) == 2
    assert len(rule(nodes, 20 * MB + 1, 0.0)) == 3


@every_rule
def test_the_less_used_of_two_alike_goes_first(rule: Evict) -> None:
    assert rule([ROOT, zygote("a", rate=0.2), zygote("b", rate=0.1)], 1, 0.0) == ["b"]


@every_rule
def test_the_larger_of_two_alike_goes_first(rule: Evict) -> None:
    assert rule([ROOT, zygote("a", mb=10), zygote("b", mb=20)], 1, 0.0) == ["b"]


@every_rule
def test_the_least_recently_used_of_two_equals_goes_first(rule: Evict) -> None:
    nodes = [ROOT, replace(zygote("a"), last_used_s=2.0), replace(zygote("b"), last_used_s=1.0)]
    assert rule(nodes, 1, 9.0) == ["b"]


def test_sock_counts_imports_that_the_next_best_lacks() -> None:
    nodes = [ROOT, zygote("a"), zygote("a b c", parent="a"), zygote("d e")]
    assert sock_heuristic(nodes, 1, 0.0) == ["a"]
    assert sock_heuristic([ROOT, zygote("a b"), zygote("a b c"), zygote("d e")], 1, 0.0) == ["a b c"]


def test_sock_knows_no_import_times() -> None:
    slow, quick = zygote("slow", saved=2.0, rate=0.1), zygote("quick", saved=0.001, rate=0.11)
    assert sock_heuristic([ROOT, slow, quick], 1, 0.0) == ["slow"]
    assert measured_benefit([ROOT, slow, quick], 1, 0.0) == ["quick"]


def test_the_released_evictor_spares_parents_while_they_have_children() -> None:
    nodes = [ROOT, zygote("a", rate=0.01), zygote("a b", parent="a", rate=0.5)]
    assert released_heuristic(nodes, 1, 0.0) == ["a b"]
    assert released_heuristic(nodes, 11 * MB, 0.0) == ["a b", "a"]
    assert measured_benefit(nodes, 1, 0.0) == ["a"]


def test_children_and_handlers_do_not_keep_a_node() -> None:
    assert measured_benefit([ROOT, replace(zygote("a"), leases=100), zygote("b", rate=0.2)], 1, 0.0) == ["a"]


def test_a_node_that_must_serve_for_its_child_is_worth_more() -> None:
    parent = zygote("a", rate=0.1, saved=0.1)
    child = zygote("a b", parent="a", rate=1.0, saved=0.005)
    other = zygote("c", rate=0.5, saved=0.1)
    assert measured_benefit([ROOT, parent, child, other], 20 * MB, 0.0) == ["a b", "c"]


def test_a_node_whose_stand_in_was_evicted_is_worth_more() -> None:
    stand_in = zygote("a", rate=0.001, saved=0.5)
    node = zygote("a b", rate=0.1, saved=0.01)
    other = zygote("c", rate=0.1, saved=0.1)
    assert measured_benefit([ROOT, stand_in, node, other], 20 * MB, 0.0) == ["a", "c"]


def test_a_new_node_needs_no_reason_where_there_is_room() -> None:
    assert worth_making(new_node(10, 1e-9), [ROOT, zygote("a")], 10 * MB, TreeLimits())


def test_a_new_node_must_be_worth_more_than_what_it_displaces() -> None:
    nodes = [ROOT, zygote("a", mb=20, rate=1.0, saved=0.1)]
    assert worth_making(new_node(10, 0.2), nodes, 0, TreeLimits(min_gain=1.5))
    assert not worth_making(new_node(10, 0.12), nodes, 0, TreeLimits(min_gain=1.5))


def test_a_new_node_is_not_made_when_no_eviction_makes_room() -> None:
    assert not worth_making(new_node(100, 1e9), [ROOT, zygote("a", mb=20)], 0, TreeLimits())


def test_a_new_node_does_not_displace_its_own_parent() -> None:
    plan = replace(new_node(10, 1e9), parent_id="a")
    assert not worth_making(plan, [ROOT, zygote("a", mb=20)], 0, TreeLimits())


def test_a_full_tree_makes_room_whatever_the_memory() -> None:
    assert room_needed(new_node(10, 1.0), 64, 1 << 40, TreeLimits(max_nodes=64)) == 1
    assert room_needed(new_node(10, 1.0), 63, 1 << 40, TreeLimits(max_nodes=64)) <= 0
    assert room_needed(new_node(10, 1.0), 63, 4 * MB, TreeLimits(max_nodes=64)) == 6 * MB


stats = st.builds(
    NodeStats,
    id=st.text("abcdefgh", min_size=1),
    parent_id=st.sampled_from(["root", "a"]),
    imports=st.frozensets(st.sampled_from("pqrst")),
    unique_bytes=st.integers(0, 100 * MB),
    recent_rate=st.floats(0, 100),
    import_seconds_saved=st.floats(0, 10),
    provisioning=st.booleans(),
)


@every_rule
@given(nodes=st.lists(stats, unique_by=lambda node: node.id, max_size=12), need=st.integers(0, 500 * MB))
def test_victims_are_distinct_evictable_and_enough_unless_none_are_left(
    rule: Evict, nodes: list[NodeStats], need: int
) -> None:
    nodes = [ROOT, *nodes]
    victims = rule(nodes, need, 0.0)
    by_id = {node.id: node for node in nodes}
    assert len(set(victims)) == len(victims)
    assert all(by_id[victim].evictable for victim in victims)
    freed = sum(by_id[victim].unique_bytes for victim in victims)
    left = [node for node in nodes if node.evictable and node.id not in victims]
    if rule is not released_heuristic:
        assert freed >= need or not left
    if victims:
        assert freed - by_id[victims[-1]].unique_bytes < need
