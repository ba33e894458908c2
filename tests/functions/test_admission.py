"""Who may enter: fair, bounded, and without losing a place to a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sockd.base.errors import Draining, SockdError, TooManyRequests
from sockd.functions.serving.admission import Admission
from tests.support.examples import examples


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 10))


async def settle() -> None:
    """Lets every task run until it waits for something else."""
    loop = asyncio.get_running_loop()
    for _ in range(5):
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


class Visitor:
    """One who waits for its turn in a task."""

    def __init__(self) -> None:
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def turn_came(self) -> None:
        if not self.turn.done():
            self.turn.set_result(None)

    def refused(self, error: SockdError) -> None:
        self.turn.set_exception(error)


async def enter(admission: Admission) -> None:
    """Enter, after waiting for a turn if need be; cancelled, nothing is owed."""
    if admission.try_enter():
        return
    visitor = Visitor()
    admission.queue(visitor)
    try:
        await visitor.turn
    except asyncio.CancelledError:
        if not admission.give_up(visitor):
            admission.leave()
        raise


class Crowd:
    """Requests at one API; records who is inside, in the order of entering."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.tasks: list[asyncio.Task[None]] = []
        self.exits: list[asyncio.Event] = []
        self.entered: list[int] = []

    async def come(self) -> int:
        number = len(self.tasks)
        self.exits.append(asyncio.Event())
        self.tasks.append(asyncio.create_task(self._visit(number)))
        await settle()
        return number

    async def _visit(self, number: int) -> None:
        await enter(self.admission)
        try:
            self.entered.append(number)
            await self.exits[number].wait()
        finally:
            self.admission.leave()

    async def go(self, number: int) -> None:
        self.exits[number].set()
        await settle()

    async def disperse(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def test_requests_beyond_the_concurrency_wait_their_turn_in_order() -> None:
    async def main() -> None:
        crowd = Crowd(Admission(2, 10))
        for _ in range(5):
            await crowd.come()
        assert (crowd.entered, crowd.admission.waiting) == ([0, 1], 3)
        await crowd.go(1)
        assert crowd.entered == [0, 1, 2]
        await crowd.go(0)
        await crowd.go(2)
        assert crowd.entered == [0, 1, 2, 3, 4]
        await crowd.disperse()

    run(main())


def test_a_full_queue_refuses_at_once() -> None:
    async def main() -> None:
        admission = Admission(1, 1)
        crowd = Crowd(admission)
        await crowd.come()
        await crowd.come()
        with pytest.raises(TooManyRequests, match="1 requests are running and 1 waiting"):
            await enter(admission)
        await crowd.disperse()
        assert (admission.running, admission.waiting) == (0, 0)

    run(main())


def test_without_a_queue_only_those_who_fit_enter() -> None:
    async def main() -> None:
        admission = Admission(1, 0)
        await enter(admission)
        with pytest.raises(TooManyRequests):
            await enter(admission)

    run(main())


def test_no_one_overtakes_a_waiter() -> None:
    async def main() -> None:
        admission = Admission(1, 10)
        assert admission.try_enter()
        crowd = Crowd(admission)
        await crowd.come()
        admission.leave()
        assert not admission.try_enter()  # the place belongs to the waiter, before it has run
        await settle()
        assert crowd.entered == [0]
        await crowd.disperse()

    run(main())


def test_a_cancelled_waiter_leaves_the_queue() -> None:
    async def main() -> None:
        crowd = Crowd(Admission(1, 10))
        for _ in range(3):
            await crowd.come()
        crowd.tasks[1].cancel()
        await settle()
        assert crowd.admission.waiting == 1
        await crowd.go(0)
        assert crowd.entered == [0, 2]
        await crowd.disperse()

    run(main())


@pytest.mark.parametrize("leaves_first", [True, False])
def test_a_turn_given_in_the_step_of_a_cancellation_is_passed_on(leaves_first: bool) -> None:
    async def main() -> None:
        admission = Admission(1, 10)
        assert admission.try_enter()
        crowd = Crowd(admission)
        await crowd.come()
        await crowd.come()
        steps: list[Callable[[], object]] = [admission.leave, crowd.tasks[0].cancel]
        for step in steps if leaves_first else steps[::-1]:
            step()
        await settle()
        assert (crowd.entered, admission.running, admission.waiting) == ([1], 1, 0)
        await crowd.disperse()
        assert admission.running == 0

    run(main())


def test_more_concurrency_wakes_all_who_fit_and_less_stops_no_one() -> None:
    async def main() -> None:
        crowd = Crowd(Admission(1, 10))
        for _ in range(5):
            await crowd.come()
        crowd.admission.resize(4, 10)
        await settle()
        assert crowd.entered == [0, 1, 2, 3]
        crowd.admission.resize(1, 0)
        for number in (0, 1, 2):
            await crowd.go(number)
        assert (crowd.entered, crowd.admission.running) == ([0, 1, 2, 3], 1)
        await crowd.go(3)
        assert crowd.entered == [0, 1, 2, 3, 4]
        await crowd.disperse()

    run(main())


def test_draining_serves_those_who_came_and_refuses_those_who_come() -> None:
    async def main() -> None:
        admission = Admission(1, 10)
        crowd = Crowd(admission)
        await crowd.come()
        await crowd.come()
        drained = asyncio.create_task(admission.drain())
        await settle()
        assert not admission.try_enter()
        with pytest.raises(Draining):
            await enter(admission)
        await crowd.go(0)
        assert crowd.entered == [0, 1]
        assert not drained.done()
        await crowd.go(1)
        await drained
        await admission.drain()

    run(main())


def test_draining_ends_when_the_last_waiter_is_cancelled() -> None:
    async def main() -> None:
        admission = Admission(1, 10)
        assert admission.try_enter()
        waiter = asyncio.create_task(enter(admission))
        await settle()
        drained = asyncio.create_task(admission.drain())
        await settle()
        waiter.cancel()
        admission.leave()
        await drained
        assert waiter.cancelled()

    run(main())


def test_leaving_without_having_entered_is_a_bug_that_is_reported() -> None:
    with pytest.raises(RuntimeError, match="leave without enter"):
        Admission(1, 1).leave()


class Model:
    """Admission as one would write it without an event loop."""

    def __init__(self, concurrency: int, queue_depth: int) -> None:
        self.concurrency, self.queue_depth = concurrency, queue_depth
        self.inside: list[int] = []
        self.queue: list[int] = []
        self.entered: list[int] = []

    def come(self, number: int) -> None:
        if len(self.inside) >= self.concurrency and len(self.queue) >= self.queue_depth:
            return
        self.queue.append(number)
        self.wake()

    def gone(self, number: int) -> None:
        for group in (self.inside, self.queue):
            if number in group:
                group.remove(number)
        self.wake()

    def wake(self) -> None:
        while self.queue and len(self.inside) < self.concurrency:
            self.inside.append(self.queue[0])
            self.entered.append(self.queue.pop(0))


STEP = st.one_of(
    st.tuples(st.just("come"), st.just(0), st.just(0)),
    st.tuples(st.sampled_from(["go", "cancel"]), st.integers(0, 20), st.just(0)),
    st.tuples(st.just("resize"), st.integers(1, 4), st.integers(0, 4)),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(1, 4), st.integers(0, 4), st.lists(STEP, max_size=40))
def test_any_sequence_of_comings_goings_and_resizings_is_that_of_the_model(
    concurrency: int, queue_depth: int, steps: list[tuple[str, int, int]]
) -> None:
    async def main() -> None:
        admission = Admission(concurrency, queue_depth)
        crowd, model = Crowd(admission), Model(concurrency, queue_depth)
        for verb, first, second in steps:
            if verb == "come":
                model.come(await crowd.come())
            elif verb == "resize":
                admission.resize(first, second)
                model.concurrency, model.queue_depth = first, second
                model.wake()
            elif first < len(crowd.tasks):
                # One who still waits is not let go, only cancelled: its exit would be open when it enters.
                if verb == "cancel" or first in model.queue:
                    crowd.tasks[first].cancel()
                else:
                    crowd.exits[first].set()
                model.gone(first)
            await settle()
            assert crowd.entered == model.entered
            assert (admission.running, admission.waiting) == (len(model.inside), len(model.queue))
        await crowd.disperse()
        assert (admission.running, admission.waiting) == (0, 0)

    run(main())


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=12))
def test_whatever_happens_within_one_step_of_the_loop_no_place_is_lost(events: list[tuple[bool, int]]) -> None:
    async def main() -> None:
        admission = Admission(3, 8)
        for _ in range(3):
            assert admission.try_enter()
        crowd = Crowd(admission)
        for _ in range(8):
            await crowd.come()
        own = 3
        for leaves, number in events:  # nothing runs in between
            if leaves and own:
                own -= 1
                admission.leave()
            else:
                crowd.tasks[number].cancel()
        await settle()
        assert admission.running == 3 or not admission.waiting
        await crowd.disperse()
        assert (admission.running, admission.waiting) == (own, 0)

    run(main())


def test_with_a_concurrency_of_none_no_one_enters_or_waits() -> None:
    async def main() -> None:
        admission = Admission(1, 10)
        assert admission.try_enter()
        waiting = asyncio.ensure_future(enter(admission))
        await asyncio.sleep(0)
        admission.resize(0, 10)
        for refused in (waiting, enter(admission)):
            with pytest.raises(TooManyRequests, match="disabled"):
                await refused
        assert (admission.running, admission.waiting) == (1, 0)
        admission.leave()
        assert not admission.try_enter()
        admission.resize(1, 10)
        assert admission.try_enter()

    run(main())
