"""The budget of what is in memory for clients: who gets room, who gives it up, and that it is never exceeded."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.base.config import MB, HttpConfig
from sockd.base.errors import BadConfig
from sockd.http.server.bounds.buffers import LEAST_BYTES, Buffer, BufferBudget, buffer_bytes
from sockd.linux.cgroups.own_memory import memory_bytes
from tests.fuzz.fuzzing import fuzz

pytestmark = pytest.mark.anyio


class Holder:
    """One buffer, and the calls that it got."""

    def __init__(self, budget: BufferBudget, source: str, *, gives_way: bool = True) -> None:
        self.gives_way = gives_way
        self.reported: list[str] = []
        self.buffer: Buffer = budget.open(source, self._give_way, lambda: self.reported.append("room"))

    def _give_way(self) -> bool:
        if self.gives_way:
            self.reported.append("dropped")
            self.buffer.close()
        return self.gives_way


async def test_one_source_may_have_all_of_it_and_then_waits() -> None:
    budget = BufferBudget(100)
    first, second = Holder(budget, "a"), Holder(budget, "a")
    assert first.buffer.grow(100)
    assert not second.buffer.grow(1)
    second.buffer.wait(1)
    first.buffer.close()
    await asyncio.sleep(0)
    assert (second.reported, budget.used) == (["room"], 1)
    assert first.reported == []


async def test_a_source_with_less_takes_the_longest_idle_of_the_one_with_most() -> None:
    budget = BufferBudget(100)
    idle, busy, other = Holder(budget, "a"), Holder(budget, "a"), Holder(budget, "b")
    assert idle.buffer.grow(40) and busy.buffer.grow(40) and other.buffer.grow(20)
    assert other.buffer.grow(15)
    assert (idle.reported, busy.reported) == (["dropped"], [])
    assert budget.used == 75


async def test_no_one_takes_from_a_source_that_has_less_than_it_would_have_itself() -> None:
    budget = BufferBudget(100)
    holders = [Holder(budget, source) for source in "abcd"]
    assert all(holder.buffer.grow(25) for holder in holders)
    assert not holders[0].buffer.grow(1)
    assert [holder.reported for holder in holders] == [[], [], [], []]


async def test_what_cannot_be_dropped_is_passed_over() -> None:
    budget = BufferBudget(100)
    runs, waits, other = Holder(budget, "a", gives_way=False), Holder(budget, "a"), Holder(budget, "b")
    assert runs.buffer.grow(50) and waits.buffer.grow(50)
    assert other.buffer.grow(10)
    assert waits.reported == ["dropped"]


async def test_those_of_one_source_are_served_in_order_and_hold_up_no_other() -> None:
    budget = BufferBudget(100)
    holder, large, small, other = (Holder(budget, source) for source in "aaab")
    assert holder.buffer.grow(60)
    assert not large.buffer.grow(80)
    large.buffer.wait(80)
    assert not small.buffer.grow(10)
    small.buffer.wait(10)
    assert other.buffer.grow(10)
    holder.buffer.close()
    await asyncio.sleep(0)
    assert (large.reported, small.reported, budget.used) == (["room"], ["room"], 100)


async def test_one_that_waits_no_more_lets_the_next_go_on() -> None:
    budget = BufferBudget(100)
    holder, large, small = (Holder(budget, "a") for _ in range(3))
    assert holder.buffer.grow(60)
    large.buffer.wait(80)
    small.buffer.wait(10)
    large.buffer.close()
    await asyncio.sleep(0)
    assert (large.reported, small.reported, budget.used) == ([], ["room"], 70)


async def test_what_is_there_already_is_counted_and_crowds_out_its_own_source() -> None:
    budget = BufferBudget(100)
    answer, other = Holder(budget, "a", gives_way=False), Holder(budget, "b")
    assert other.buffer.grow(10)
    answer.buffer.set(120)
    assert other.reported == ["dropped"]  # of the answers none could be cut
    assert budget.is_crowded_by("a") and not budget.is_crowded_by("b")
    answer.buffer.set(90)
    assert not budget.is_crowded_by("a")


def test_without_a_setting_it_is_a_tenth_of_the_memory() -> None:
    assert buffer_bytes(HttpConfig()) == max(memory_bytes() // 10, LEAST_BYTES)
    assert buffer_bytes(HttpConfig(buffer_mb=12)) == 12 * MB
    with pytest.raises(BadConfig, match="12 at least"):
        buffer_bytes(HttpConfig(buffer_mb=11))


steps = st.lists(
    st.tuples(
        st.sampled_from(["grow", "wait", "set", "close"]),
        st.integers(0, 11),
        st.integers(0, 60),
        st.booleans(),
    ),
    max_size=60,
)


@fuzz(300)
@given(steps)
async def test_whatever_is_asked_for_what_grows_stays_within_the_budget(done: list[tuple[str, int, int, bool]]) -> None:
    budget = BufferBudget(100)
    holders = [Holder(budget, "abc"[number % 3]) for number in range(12)]
    forced = 0
    for verb, number, size, gives_way in done:
        holder = holders[number]
        holder.gives_way = gives_way
        before = budget.used
        if verb == "grow" or verb == "wait":
            if not holder.buffer.grow(size) and verb == "wait":
                holder.buffer.wait(size)
            assert budget.used <= max(100, before)
        elif verb == "set":
            holder.buffer.set(size)
            forced = max(forced, size)
        else:
            holder.buffer.close()
        await asyncio.sleep(0)
        assert budget.used == sum(each.buffer.size for each in holders) <= 100 + 12 * forced
        assert all(budget.held_by(s) == sum(h.buffer.size for h in holders if h.buffer.source == s) for s in "abc")
    for holder in holders:
        holder.buffer.close()
    await asyncio.sleep(0)
    assert (budget.used, budget.waiting) == (0, 0)
