"""The memory budget against a model: nothing is given twice, nothing is lost, and waiters are served in order."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest

from sockd.base.errors import NoCapacity
from sockd.isolation.sandbox.memory_budget import MemoryBudget, Reservation, host_memory_bytes

pytestmark = pytest.mark.anyio

TOTAL = 100


async def turn() -> None:
    """Let everybody who can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(30))
async def test_at_random_nothing_leaks_and_order_is_kept(seed: int) -> None:
    dice = random.Random(seed)
    budget = MemoryBudget(TOTAL)
    held: list[Reservation] = []
    waiting: list[tuple[int, asyncio.Task[Reservation]]] = []
    served: list[int] = []

    async def wait_for(number: int, size: int) -> Reservation:
        reservation = await budget.reserve(size, deadline_s=60)
        served.append(number)
        return reservation

    for number in range(300):
        match dice.choice(["reserve", "reserve", "close", "cancel", "resize", "nowait", "grow"]):
            case "reserve":
                size = dice.randint(1, TOTAL)
                waiting.append((size, asyncio.create_task(wait_for(number, size))))
            case "close" if held:
                held.pop(dice.randrange(len(held))).close()
            case "cancel" if waiting:
                waiting[dice.randrange(len(waiting))][1].cancel()
                if dice.random() < 0.5 and held:  # served and cancelled in the same turn
                    held.pop().close()
            case "resize" if held:
                held[dice.randrange(len(held))].resize_nowait(dice.randint(0, TOTAL))
            case "nowait":
                reservation = budget.reserve_nowait(dice.randint(0, TOTAL))
                if reservation is not None:
                    held.append(reservation)
            case "grow" if held:
                grown = held[dice.randrange(len(held))]
                try:
                    await asyncio.wait_for(grown.grow(grown.size + dice.randint(1, 10), deadline_s=60), 0)
                except (TimeoutError, NoCapacity):
                    pass
        await turn()
        done = [task for _, task in waiting if task.done()]
        held += [task.result() for task in done if not task.cancelled()]
        waiting = [(size, task) for size, task in waiting if not task.done()]
        assert 0 <= budget.used <= TOTAL
        assert sum(reservation.size for reservation in held) <= budget.used
    await turn()
    assert served == sorted(served)
    for _, task in waiting:
        task.cancel()
    await turn()
    held += [task.result() for _, task in waiting if not task.cancelled()]
    for reservation in held:
        reservation.close()
    assert budget.used == 0
    assert not budget.contended


async def test_as_many_waiters_as_fit_are_served_at_once() -> None:
    budget = MemoryBudget(TOTAL)
    everything = await budget.reserve(TOTAL, deadline_s=1)
    waiters = [asyncio.create_task(budget.reserve(size, deadline_s=10)) for size in (30, 30, 30, 30)]
    await turn()
    assert budget.contended
    everything.close()
    await turn()
    assert [waiter.done() for waiter in waiters] == [True, True, True, False]
    waiters[0].result().close()
    assert (await waiters[3]).size == 30


async def test_a_small_request_does_not_overtake_a_large_one() -> None:
    budget = MemoryBudget(TOTAL)
    first = await budget.reserve(60, deadline_s=1)
    large = asyncio.create_task(budget.reserve(80, deadline_s=10))
    await turn()
    small = asyncio.create_task(budget.reserve(10, deadline_s=10))
    await turn()
    assert budget.reserve_nowait(10) is None
    assert not small.done()
    large.cancel()
    await turn()
    assert small.done() and budget.used == 70
    first.close()
    small.result().close()


async def test_more_than_there_is_is_refused_at_once_and_too_late_in_time() -> None:
    budget = MemoryBudget(TOTAL)
    with pytest.raises(NoCapacity, match="the worker has"):
        await budget.reserve(TOTAL + 1, deadline_s=60)
    reservation = await budget.reserve(TOTAL, deadline_s=1)
    with pytest.raises(NoCapacity, match=r"came free in 0\.01 s"):
        await budget.reserve(1, deadline_s=0.01)
    assert not budget.contended
    reservation.close()
    reservation.close()
    assert budget.used == 0


async def test_room_is_made_before_anybody_waits() -> None:
    budget = MemoryBudget(TOTAL)
    idle = [await budget.reserve(50, deadline_s=1) for _ in range(2)]
    asked: list[int] = []

    def evict(need_bytes: int) -> None:
        asked.append(need_bytes)
        idle.pop().close()

    budget.holders.append(SimpleNamespace(make_room=evict))
    assert (await budget.reserve(40, deadline_s=0)).size == 40
    assert asked == [40]


async def test_growing_waits_its_turn_and_keeps_what_was_waited_for() -> None:
    budget = MemoryBudget(TOTAL)
    paused, other = await budget.reserve(10, deadline_s=1), await budget.reserve(90, deadline_s=1)
    growing = asyncio.create_task(paused.grow(50, deadline_s=10))
    await turn()
    thief = asyncio.create_task(budget.reserve(60, deadline_s=10))
    await turn()
    other.close()
    await turn()
    assert growing.done() and paused.size == 50 and budget.used == 50
    assert not thief.done()
    paused.close()
    (await thief).close()
    assert budget.used == 0


async def test_growing_in_vain_changes_nothing() -> None:
    budget = MemoryBudget(TOTAL)
    paused, other = await budget.reserve(10, deadline_s=1), await budget.reserve(90, deadline_s=1)
    with pytest.raises(NoCapacity):
        await paused.grow(50, deadline_s=0.01)
    assert (paused.size, budget.used) == (10, 100)
    other.close()
    paused.close()


async def test_it_knows_the_hosts_memory() -> None:
    assert host_memory_bytes() > 64 << 20
