"""The gate of starts: how many inits begin at the same time, who waits, for what, and who goes first."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, cast

import pytest

from sockd.base.errors import SockdError, StartsBusy
from sockd.functions.serving.start_gate import StartGate, StartLimits, StartPlace
from tests.support.fake_clock import FakeClock, FakeTimer

CPUS = 4.0
WAIT_S, INIT_TIMEOUT_S, MEMORY_WAIT_S = 20.0, 10.0, 3.0
HEAVY = (2.0, 2.0)
"""An init that computes for all of its two seconds."""


class FakeLoop(FakeClock):
    """A loop whose next iteration comes when the test says so."""

    def time(self) -> float:
        return self.monotonic()

    def call_later(self, delay_s: float, callback: Callable[..., object], *arguments: Any) -> FakeTimer:
        return super().call_later(delay_s, lambda: callback(*arguments))

    def call_soon(self, callback: Callable[[], object]) -> FakeTimer:
        return self.call_later(0, callback)


class Waiter:
    """A request at the gate, and what it was given."""

    def __init__(self, served_by: object | None = "f", *, is_gone: bool = False) -> None:
        self.served_by = served_by
        self.is_gone = is_gone
        self.place: StartPlace | None = None
        self.turns = 0
        self.error: SockdError | None = None

    def turn_to_start(self, place: StartPlace | None) -> bool:
        self.turns += 1
        if self.is_gone and place is not None:
            place.end()
        elif not self.is_gone:
            self.place = place
        return not self.is_gone

    def not_started(self, error: SockdError) -> None:
        self.error = error


class Gate:
    """A gate, its loop, and its function's admitted requests."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.admitted = 0
        """Requests that start, wait at the gate, or run in a sandbox that has initialized."""
        self.has_room = True
        limits, loop = StartLimits(CPUS, WAIT_S), cast(asyncio.AbstractEventLoop, self.loop)
        self.gate = StartGate(
            loop, limits, INIT_TIMEOUT_S, MEMORY_WAIT_S, running=lambda: self.admitted, has_room=lambda: self.has_room
        )

    def start(self, count: int) -> list[StartPlace]:
        """So many begin at once."""
        places = []
        for _ in range(count):
            self.admitted += 1
            places.append(self.gate.try_start())
        assert None not in places
        return [place for place in places if place is not None]

    def wait(self, *waiters: Waiter) -> None:
        for each in waiters:
            self.admitted += 1
            assert self.gate.try_start() is None
            self.gate.queue(each)

    def ready(self, place: StartPlace) -> None:
        """Its sandbox has initialized, and serves its request."""
        place.end(is_ready=True)
        self.loop.pass_by(0)

    def fail(self, place: StartPlace) -> None:
        """Its init has failed."""
        self.admitted -= 1
        place.end()
        self.loop.pass_by(0)


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_of_an_unknown_function_as_many_begin_as_there_are_processors(gate: Gate) -> None:
    gate.start(4)
    assert gate.gate.try_start() is None


@pytest.mark.parametrize(
    ("init_s", "cpu_s", "limit"),
    [
        (2, 2, 4),  # it computes
        (2, 1.9, 4),  # and hardly does anything else
        (2, 1, 8),
        (2, 0.01, 800),  # it waits for the network
        (2, 0, 4000),
        (2, 8, 1),  # in as many threads as there are processors
        (2, 30, 1),
        (0.01, 0, math.inf),  # nobody is late for it
    ],
)
def test_as_many_begin_as_the_processors_have_work_for(gate: Gate, init_s: float, cpu_s: float, limit: float) -> None:
    gate.gate.learn(init_s, cpu_s)
    assert gate.gate.limit == limit


def test_a_place_goes_to_the_one_that_waited_longest(gate: Gate) -> None:
    places = gate.start(4)
    first, second = Waiter(), Waiter()
    gate.wait(first, second)
    places[0].end()
    assert not first.turns, "not in the step in which a start ends"
    gate.loop.pass_by(0)
    assert first.place is not None and not second.turns
    first.place.end()
    gate.loop.pass_by(0)
    assert second.place is not None


def test_a_place_is_ended_once(gate: Gate) -> None:
    (place,) = gate.start(1)
    place.end()
    place.end(is_ready=True)
    assert gate.gate.starting == 0


def test_an_idle_sandbox_goes_to_the_first_that_it_may_serve(gate: Gate) -> None:
    gate.start(4)
    fresh, other, gone, first, second = Waiter(None), Waiter("g"), Waiter(is_gone=True), Waiter(), Waiter()
    gate.wait(fresh, other, gone, first, second)
    gate.gate.offer("f")
    assert [each.turns for each in (fresh, other, gone, first, second)] == [0, 0, 1, 1, 0]
    assert first.place is None
    assert list(gate.gate.waiters) == [fresh, other, second]


def test_while_one_serves_an_init_is_waited_for_as_long_as_it_takes(gate: Gate) -> None:
    places = gate.start(4)
    waiters = [Waiter() for _ in range(6)]
    gate.wait(*waiters)
    gate.loop.pass_by(3)
    gate.gate.learn(*HEAVY)
    gate.ready(places[0])
    gate.loop.pass_by(1.9)
    assert not any(each.turns for each in waiters)
    gate.loop.pass_by(0.2)
    assert [each.turns for each in waiters] == [1, 0, 0, 0, 0, 0]
    gate.ready(places[1])
    assert [each.turns for each in waiters] == [1, 1, 0, 0, 0, 0], "idle ones do not suffice, so the others go on"


def test_while_none_serves_the_next_begins_at_once(gate: Gate) -> None:
    gate.gate.learn(*HEAVY)
    places = gate.start(4)
    waiter = Waiter()
    gate.wait(waiter)
    gate.fail(places[0])
    assert waiter.turns == 1


def test_one_that_needs_a_new_sandbox_does_not_wait_for_an_idle_one(gate: Gate) -> None:
    gate.gate.learn(*HEAVY)
    places = gate.start(4)
    fresh = Waiter(None)
    gate.wait(fresh)
    gate.ready(places[0])
    assert fresh.turns == 1


def test_when_an_init_turns_out_to_wait_for_the_network_all_begin(gate: Gate) -> None:
    places = gate.start(4)
    waiters = [Waiter() for _ in range(16)]
    gate.wait(*waiters)
    gate.gate.learn(1.0, 0.02)
    gate.ready(places[0])
    gate.loop.pass_by(1)
    assert all(each.place is not None for each in waiters)


def test_while_others_serve_no_init_begins_for_which_there_is_no_memory(gate: Gate) -> None:
    gate.gate.learn(0.01, 0.01)
    for place in gate.start(2):
        gate.ready(place)
    gate.has_room = False
    waiters = [Waiter(), Waiter(), Waiter()]
    gate.wait(*waiters)
    gate.loop.pass_by(1)
    gate.gate.offer("f")
    gate.loop.pass_by(0)
    assert [each.turns for each in waiters] == [1, 0, 0]
    gate.has_room = True
    gate.gate.offer("another function")
    gate.loop.pass_by(0)
    assert all(each.turns == 1 for each in waiters) and waiters[2].place is not None


def test_a_request_that_waited_as_long_as_for_memory_waits_for_memory(gate: Gate) -> None:
    gate.gate.learn(0.01, 0.01)
    (place,) = gate.start(1)
    gate.ready(place)
    gate.has_room = False
    waiter, later = Waiter(), Waiter()
    gate.wait(waiter)
    gate.loop.pass_by(MEMORY_WAIT_S - 0.5)
    gate.wait(later)
    gate.loop.pass_by(0.6)
    assert waiter.place is not None and not later.turns


def test_a_first_sandbox_waits_for_memory_at_once(gate: Gate) -> None:
    gate.has_room = False
    assert len(gate.start(1)) == 1


def test_one_that_waits_too_long_learns_why(gate: Gate) -> None:
    gate.start(4)
    waiter, late = Waiter(), Waiter()
    gate.wait(waiter)
    gate.loop.pass_by(1)
    gate.wait(late)
    gate.loop.pass_by(WAIT_S + INIT_TIMEOUT_S - 0.5)
    assert isinstance(waiter.error, StartsBusy) and late.error is None
    assert (
        "within 30 s (sandbox.start_wait_s and init_timeout_s): 4 of the function were starting" in waiter.error.message
    )
    assert (waiter.error.status, waiter.error.retry_after_s) == (503, 1)
    assert list(gate.gate.waiters) == [late]


def test_one_that_gives_up_leaves_nothing_behind(gate: Gate) -> None:
    (place, *_) = gate.start(4)
    waiter, gone, last = Waiter(), Waiter(is_gone=True), Waiter()
    gate.wait(waiter, gone, last)
    gate.gate.give_up(waiter)
    place.end()
    gate.loop.pass_by(0)
    assert not waiter.turns and gone.turns == 1
    assert last.place is not None, "the place of one that is gone goes to the next"
    for each in (last.place, place):
        each.end()
    assert gate.gate.starting == 3 and gate.loop.next_in() is None


@pytest.mark.anyio
async def test_a_task_waits_for_a_place_and_leaves_none_behind_when_it_is_cancelled() -> None:
    gate = StartGate(asyncio.get_running_loop(), StartLimits(1, 0), 0.01, 1, lambda: 0, lambda: True)
    places = [await gate.enter(), await gate.enter()]
    waiting, given = (asyncio.ensure_future(gate.enter()) for _ in range(2))
    await asyncio.sleep(0)
    waiting.cancel()
    places.pop().end()
    for _ in range(2):  # the second has its place, and does not know it yet
        await asyncio.sleep(0)
    given.cancel()
    for task in (waiting, given):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert gate.starting == 1
    places.append(await gate.enter())
    with pytest.raises(StartsBusy):
        await gate.enter()
    for place in places:
        place.end()
    assert not gate.starting and not gate.waiters
