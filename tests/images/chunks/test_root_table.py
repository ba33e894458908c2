"""The table of roots: its transitions, and changes by several workers."""

from __future__ import annotations

import itertools

import pytest

from sockd.base.errors import StoreUnavailable, Tampered
from sockd.images.chunks.root_table import (
    KEPT_DELETED,
    TRANSITIONS,
    BadTransition,
    RootEvent,
    RootState,
    RootTable,
    changed_table,
    ensured_table,
    read_table,
)
from tests.support.images.chunk_memory import MemoryStore


def test_every_transition_that_is_not_in_the_table_is_refused() -> None:
    for state, event in itertools.product(RootState, RootEvent):
        table = RootTable.first("a", 0.0)
        path = {
            RootState.ACTIVE: [],
            RootState.RETIRED: [RootEvent.RETIRE],
            RootState.EXPIRED: [RootEvent.RETIRE, RootEvent.EXPIRE],
            RootState.DELETED: [RootEvent.RETIRE, RootEvent.EXPIRE, RootEvent.DELETE],
        }[state]
        for step in path:
            table = table.after("a", step, 1.0)
        assert table.state("a") is state
        if event in TRANSITIONS[state]:
            assert table.after("a", event, 2.0).state("a") is TRANSITIONS[state][event]
        else:
            with pytest.raises(BadTransition, match=f"{event} while {state}"):
                table.after("a", event, 2.0)


def test_a_rotation_leaves_one_active_root_and_the_origin() -> None:
    table = RootTable.first("a", 0.0).rotated("b", 1.0).rotated("c", 2.0)
    assert table.active == "c" and table.origin == "a" and table.in_state(RootState.RETIRED) == ["a", "b"]
    with pytest.raises(BadTransition):
        table.rotated("a", 3.0)


def test_a_root_that_the_table_forgot_is_deleted() -> None:
    table = RootTable.first("r0", 0.0)
    for number in range(1, KEPT_DELETED + 3):
        table = table.rotated(f"r{number}", 0.0)
        for event in (RootEvent.EXPIRE, RootEvent.DELETE):
            table = table.after(f"r{number - 1}", event, 0.0)
    assert len(table.in_state(RootState.DELETED)) == KEPT_DELETED
    assert table.state("r0") is table.state("unknown") is RootState.DELETED


def test_the_first_worker_makes_the_table_and_others_find_it() -> None:
    store = MemoryStore()
    names = iter(("a", "b"))
    first = ensured_table(store, lambda: next(names), 0.0)
    assert ensured_table(store, lambda: next(names), 1.0) == first and first.active == "a"


def test_a_change_is_made_again_when_another_worker_was_faster() -> None:
    store = MemoryStore()
    ensured_table(store, lambda: "a", 0.0)
    tries = itertools.count()

    def change(table: RootTable) -> RootTable:
        if next(tries) == 0:
            changed_table(store, lambda other: other.rotated("b", 1.0))
        return table.rotated("c", 2.0)

    assert changed_table(store, change).in_state(RootState.RETIRED) == ["a", "b"]


def test_a_table_that_always_changes_is_an_error() -> None:
    store = MemoryStore()
    ensured_table(store, lambda: "a", 0.0)
    numbers = itertools.count()

    def change(table: RootTable) -> RootTable:
        store.put_object("roots", store.objects["roots"].data)
        return table.rotated(f"b{next(numbers)}", 1.0)

    with pytest.raises(StoreUnavailable, match="changes all the time"):
        changed_table(store, change)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"origin":"a","roots":{}}',
        b'{"origin":"a","roots":{"../a":{"state":"active","since_s":0}}}',
        b'{"origin":"a","roots":{"a":{"state":"deleted","since_s":0}}}',
        b'{"origin":"a","roots":{"a":{"state":"active","since_s":0},"b":{"state":"active","since_s":0}}}',
    ],
)
def test_something_else_in_its_place_is_tampered(data: bytes) -> None:
    store = MemoryStore()
    store.put_object("roots", data)
    with pytest.raises(Tampered):
        read_table(store)
