"""Single flight: one making for many waiters, whose cancellations are their own."""

from __future__ import annotations

import asyncio

import pytest

from sockd.base.errors import Draining, InstallFailed
from sockd.base.single_flight import SingleFlight

pytestmark = pytest.mark.anyio


class Work:
    """Work that starts, waits to be let go, and counts how often it ran."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.runs = 0

    async def __call__(self) -> int:
        self.runs += 1
        self.started.set()
        await self.go.wait()
        return self.runs


async def test_all_waiters_share_one_run_and_its_result() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    work = Work()
    waiters = [asyncio.create_task(flights.do("six", work)) for _ in range(10)]
    await work.started.wait()
    assert "six" in flights
    work.go.set()
    assert await asyncio.gather(*waiters) == [1] * 10
    assert "six" not in flights


async def test_different_keys_run_side_by_side() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    first, second = Work(), Work()
    waiters = [asyncio.create_task(flights.do("a", first)), asyncio.create_task(flights.do("b", second))]
    await first.started.wait()
    await second.started.wait()
    first.go.set()
    second.go.set()
    assert await asyncio.gather(*waiters) == [1, 1]


async def test_who_asks_after_the_end_starts_anew() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    work = Work()
    work.go.set()
    assert [await flights.do("six", work), await flights.do("six", work)] == [1, 2]


async def test_a_cancelled_waiter_leaves_and_the_work_goes_on() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    work = Work()
    starter, other = (asyncio.create_task(flights.do("six", work)) for _ in range(2))
    await work.started.wait()
    starter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starter
    work.go.set()
    assert await other == 1


async def test_the_work_goes_on_without_any_waiter() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    work = Work()
    waiter = asyncio.create_task(flights.do("six", work))
    await work.started.wait()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert "six" in flights
    work.go.set()
    await flights.settled("six")
    assert "six" not in flights


async def test_a_failure_reaches_every_waiter_and_is_not_remembered() -> None:
    flights: SingleFlight[str, int] = SingleFlight()

    async def fail() -> int:
        raise InstallFailed("no such wheel")

    results = await asyncio.gather(*(flights.do("six", fail) for _ in range(3)), return_exceptions=True)
    assert [str(result) for result in results] == ["no such wheel"] * 3
    work = Work()
    work.go.set()
    assert await flights.do("six", work) == 1


async def test_closing_stops_the_work_and_tells_the_waiters_why() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    work = Work()
    waiter = asyncio.create_task(flights.do("six", work))
    await work.started.wait()
    await flights.aclose()
    assert "six" not in flights
    with pytest.raises(Draining):
        await waiter
