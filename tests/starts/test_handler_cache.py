"""The handler cache alone, over sandboxes that only remember what was done to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from sockd.base.config import SandboxConfig
from sockd.isolation.sandbox.lifecycle import Lifecycle, State, Step
from sockd.isolation.sandbox.memory_budget import MemoryBudget, Reservation
from sockd.starts.handler_cache import HandlerCache

pytestmark = pytest.mark.anyio

MB = 1 << 20


@dataclass(eq=False)
class FakeSandbox:
    """As much of a Sandbox as the cache sees."""

    program: Any
    reservation: Reservation
    lifecycle: Lifecycle = field(default_factory=lambda: Lifecycle(State.IDLE))
    paused: asyncio.Event = field(default_factory=asyncio.Event)
    pause_error: OSError | None = None
    on_death: Callable[[Any], None] = lambda sandbox: None

    @property
    def reserved_bytes(self) -> int:
        return self.reservation.size

    def pause(self) -> None:
        if self.pause_error is not None:
            raise self.pause_error
        self.lifecycle.advance(Step.PAUSE)
        self.paused.set()

    def destroy(self) -> None:
        if not self.lifecycle.is_dead:
            self.lifecycle.advance(Step.DESTROY)
            self.on_death(self)
            self.reservation.close()


class Room:
    """A cache, its budget, and sandboxes for it."""

    def __init__(self, total_mb: int, config: SandboxConfig) -> None:
        self.budget = MemoryBudget(total_mb * MB)
        self.cache = HandlerCache(config, self.budget)
        self.budget.holders.append(self.cache)

    def sandbox(self, program: Any = "f", size_mb: int = 10, **fields: Any) -> Any:
        reservation = self.budget.reserve_nowait(size_mb * MB)
        assert reservation is not None
        return FakeSandbox(program, reservation, **fields)

    def kept(self, program: Any = "f", **fields: Any) -> Any:
        sandbox = self.sandbox(program, **fields)
        self.cache.keep(sandbox, program)
        return sandbox


def a_room(total_mb: int = 100, **config: Any) -> Room:
    return Room(total_mb, SandboxConfig(**{"pause_after_s": 60.0, **config}))


async def test_there_is_nothing_to_lease_at_first_and_for_another_program() -> None:
    room = a_room()
    assert room.cache.lease("f") is None  # type: ignore[arg-type]
    room.kept("f")
    assert room.cache.lease("g") is None  # type: ignore[arg-type]
    room.cache.close()


async def test_the_last_one_returned_is_the_first_leased() -> None:
    room = a_room()
    first, second = room.kept(), room.kept()
    lease: Any = room.cache.lease
    assert [lease("f"), lease("f"), lease("f")] == [second, first, None]
    assert (room.cache.hits, room.cache.misses) == (2, 1)
    assert room.cache.counts() == {"idle": 0, "paused": 0}
    room.cache.close()


async def test_one_makes_room_for_another_of_its_program_the_oldest_first() -> None:
    room = a_room()
    first, second, other = room.kept(), room.kept(), room.kept("g")
    drop: Any = room.cache.drop_oldest
    drop("f")
    assert (first.lifecycle.state, second.lifecycle.state) == (State.DEAD, State.IDLE)
    drop("f")
    drop("f")
    assert (second.lifecycle.state, other.lifecycle.state) == (State.DEAD, State.IDLE)
    assert (room.cache.hits, room.cache.misses, room.cache.evictions) == (0, 0, 0)
    room.cache.close()


async def test_one_that_stays_idle_is_paused_and_a_leased_one_is_not() -> None:
    room = a_room(pause_after_s=0.01)
    stays = room.kept("f")
    leased: Any = room.kept("g")
    taken: Any = room.cache.lease(leased.program)
    assert taken is leased
    async with asyncio.timeout(5):
        await stays.paused.wait()
    assert not leased.paused.is_set()
    assert room.cache.counts() == {"idle": 0, "paused": 1}
    assert room.cache.lease(stays.program) is stays
    room.cache.close()


async def test_each_is_paused_after_its_own_time_and_in_order() -> None:
    room = a_room(pause_after_s=0.01)
    sandboxes = [room.kept(n) for n in range(5)]
    async with asyncio.timeout(5):
        for sandbox in sandboxes:
            await sandbox.paused.wait()
        late = room.kept("late")
        await late.paused.wait()
    assert room.cache.counts() == {"idle": 0, "paused": 6}
    room.cache.close()


async def test_one_that_cannot_be_paused_is_destroyed() -> None:
    room = a_room(pause_after_s=0.0)
    dead = asyncio.Event()
    broken = room.sandbox(pause_error=OSError("frozen solid"))
    room.cache.keep(broken, "f")  # type: ignore[arg-type]
    forget = broken.on_death

    def died(sandbox: Any) -> None:
        forget(sandbox)
        dead.set()

    broken.on_death = died
    async with asyncio.timeout(5):
        await dead.wait()
    assert room.cache.counts() == {"idle": 0, "paused": 0} and room.cache.lease("f") is None  # type: ignore[arg-type]
    assert room.budget.used == 0
    room.cache.close()


async def test_one_that_dies_is_forgotten() -> None:
    room = a_room()
    first, second = room.kept(), room.kept()
    second.destroy()
    lease: Any = room.cache.lease
    assert lease("f") is first
    first.destroy()  # leased: no longer the cache's business
    assert room.cache.counts() == {"idle": 0, "paused": 0} and room.cache.evictions == 0
    room.cache.close()


async def test_room_is_made_by_the_least_recently_used_and_by_no_more_than_needed() -> None:
    room = a_room(total_mb=40)
    sandboxes = [room.kept(n) for n in range(4)]
    again: Any = room.cache.lease(0)  # type: ignore[arg-type]
    room.cache.keep(again, 0)  # type: ignore[arg-type]
    reservation = await room.budget.reserve(15 * MB, deadline_s=1)
    assert [sandbox.lifecycle.state for sandbox in sandboxes] == [State.IDLE, State.DEAD, State.DEAD, State.IDLE]
    assert room.cache.evictions == 2
    reservation.close()
    room.cache.close()


async def test_a_sandbox_that_comes_back_makes_room_for_one_that_waits() -> None:
    room = a_room(total_mb=30)
    busy = room.sandbox(size_mb=30)
    waiting = asyncio.ensure_future(room.budget.reserve(20 * MB, deadline_s=5))
    while not room.budget.contended:
        await asyncio.sleep(0)
    room.cache.keep(busy, "f")  # type: ignore[arg-type]
    assert (await waiting).size == 20 * MB
    assert busy.lifecycle.state is State.DEAD
    room.cache.close()


async def test_no_more_are_kept_than_the_limit() -> None:
    room = a_room(idle_limit=3)
    sandboxes = [room.kept(n) for n in range(5)]
    assert [sandbox.lifecycle.state is State.DEAD for sandbox in sandboxes] == [True, True, False, False, False]
    room.cache.close()


async def test_dropping_a_program_destroys_its_sandboxes_and_no_other() -> None:
    room = a_room(pause_after_s=0.0)
    doomed, other = [room.kept("f"), room.kept("f")], room.kept("g")
    async with asyncio.timeout(5):
        await doomed[0].paused.wait()
    room.cache.drop("f")  # type: ignore[arg-type]
    assert all(sandbox.lifecycle.state is State.DEAD for sandbox in doomed)
    assert other.lifecycle.state is not State.DEAD and room.budget.used == other.reserved_bytes
    room.cache.drop("f")  # type: ignore[arg-type]
    room.cache.close()
    assert other.lifecycle.state is State.DEAD and room.budget.used == 0


async def test_it_says_how_much_memory_could_be_had_from_idle_sandboxes() -> None:
    room = a_room()
    assert room.cache.holds(0) and not room.cache.holds(1)
    leased = [room.kept("f", size_mb=10), room.kept("g", size_mb=20)]
    assert room.cache.holds(30 * MB) and not room.cache.holds(30 * MB + 1)
    assert room.cache.lease("g") is leased[1]  # type: ignore[arg-type]
    assert room.cache.holds(10 * MB) and not room.cache.holds(10 * MB + 1)
    room.cache.close()
