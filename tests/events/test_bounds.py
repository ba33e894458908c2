"""How many events may wait and run: bounds of the queue, each function's share of them, turns."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sockd.base import errors
from tests.events.harness import Harness, all_over, fails, raised
from tests.support.fake_clock import until

pytestmark = pytest.mark.anyio


async def test_the_queue_is_bounded(tmp_path: Path) -> None:
    harness = Harness(tmp_path, max_events=3, max_bytes=100, max_payload_bytes=60, function_share=1.0)
    harness.functions.do["f"] = fails(raised)
    async with harness.open() as events:
        with pytest.raises(errors.RequestTooLarge, match="61 bytes"):
            await events.accept("f", "", bytes(61), source="aws")
        await events.accept("f", "", bytes(60), source="aws")
        with pytest.raises(errors.TooManyRequests, match="bytes"):
            await events.accept("f", "", bytes(41), source="aws")
        coming = [events.accept("f", "", b"1", source="aws") for _ in range(4)]
        results = await asyncio.gather(*coming, return_exceptions=True)
        assert [isinstance(each, errors.TooManyRequests) for each in results] == [False, False, True, True]


async def test_no_function_takes_all_of_the_queue(tmp_path: Path) -> None:
    harness = Harness(tmp_path, max_events=8, max_bytes=100)
    harness.functions.do |= {"f": fails(raised), "g": fails(raised), "h": fails(raised)}
    async with harness.open() as events:
        for _ in range(4):
            await events.accept("f", "", b"1", source="aws")
        with pytest.raises(errors.TooManyEvents, match="share"):
            await events.accept("f", "", b"1", source="aws")
        await events.accept("g", "", bytes(40), source="aws")
        with pytest.raises(errors.TooManyEvents, match="share"):
            await events.accept("g", "", bytes(11), source="aws")
        await events.accept("h", "", b"1", source="aws")
        await all_over(events, harness.clock)
        await events.accept("f", "", b"1", source="aws")


async def test_an_event_due_while_all_places_are_taken_waits_for_a_place_not_the_clock(tmp_path: Path) -> None:
    harness = Harness(tmp_path, concurrency=1)
    harness.functions.do["f"] = lambda payload: b"1"
    harness.functions.holding = asyncio.Event()
    async with harness.open() as events:
        for _ in range(3):
            await events.accept("f", "", b"{}", source="aws")
        await until(lambda: harness.functions.ran)
        assert harness.clock.next_in() is None
        shown = [await events.show(each["id"]) for each in events.waiting("f", 10)]
        assert [each["state"] for each in shown] == ["running", "waiting", "waiting"]
        harness.functions.holding.set()
        await all_over(events, harness.clock)
        assert len(harness.functions.ran) == 3


async def test_events_that_wait_for_places_begin_when_their_function_has_more(tmp_path: Path) -> None:
    harness = Harness(tmp_path, concurrency=4)
    harness.functions.do["f"] = lambda payload: b"1"
    harness.functions.places = 1
    harness.functions.holding = asyncio.Event()
    async with harness.open() as events:
        for _ in range(3):
            await events.accept("f", "", b"{}", source="aws")
        await until(lambda: len(harness.functions.ran) == 1)
        harness.functions.places = 3
        events.take_more("f")
        await until(lambda: len(harness.functions.ran) == 3)
        harness.functions.holding.set()
        await all_over(events, harness.clock)


async def test_functions_take_turns_and_none_takes_all_places(tmp_path: Path) -> None:
    harness = Harness(tmp_path, concurrency=4)
    harness.functions.do |= {"many": lambda payload: b"1", "few": lambda payload: b"1"}
    harness.functions.places = 3
    harness.functions.holding = asyncio.Event()
    async with harness.open() as events:
        await asyncio.gather(*(events.accept("many", "", b"{}", source="aws") for _ in range(20)))
        await until(lambda: len(harness.functions.ran) == 3)
        await asyncio.gather(*(events.accept("few", "", b"{}", source="aws") for _ in range(5)))
        await until(lambda: len(harness.functions.ran) == 4)
        assert harness.functions.ran[-1][0] == "few"
        harness.functions.holding.set()
        harness.functions.holding = None
        await all_over(events, harness.clock)
        names = [name for name, _, _ in harness.functions.ran]
        assert names[4:13].count("few") == 4  # in turns, though twenty of the other came first
        assert harness.functions.most_at_once <= 4
        assert events.status()["endings"] == {"succeeded": 25}
