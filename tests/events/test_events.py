"""When events run: at once, after errors again, later where there is no place, and over restarts and jumps of the clock."""

from __future__ import annotations

import asyncio
import itertools
import uuid

import pytest

from sockd.base import errors
from sockd.events.event import Event
from sockd.events.event_configs import EventInvokeConfig
from tests.events.harness import Harness, all_over, busy, fails, raised, settled
from tests.support.fake_clock import until

pytestmark = pytest.mark.anyio
HOUR = 3600.0


async def test_an_event_runs_once_and_is_gone(harness: Harness) -> None:
    harness.functions.do["f"] = lambda payload: payload
    async with harness.open() as events:
        event_id = await events.accept("f", "", b'{"a": 1}', source="run")
        await all_over(events, harness.clock)
        assert [(name, payload) for name, payload, _ in harness.functions.ran] == [("f", b'{"a": 1}')]
        assert {str(each) for each in map(_text, harness.functions.ids)} == {event_id}
        assert events.status()["endings"] == {"succeeded": 1}
    async with harness.open() as events:
        assert events.depth() == {"waiting": 0, "running": 0}


def _text(event_id: bytes) -> str:
    return str(uuid.UUID(bytes=event_id))


async def test_errors_of_the_function_are_retried_after_one_and_two_minutes(harness: Harness) -> None:
    harness.functions.do["f"] = fails(raised)
    async with harness.open() as events:
        event_id = await events.accept("f", "", b'{"a": 1}', source="aws")
        await all_over(events, harness.clock)
        assert harness.functions.times() == [0, 60, 180]
        assert len(harness.functions.ids) == 1
        letter = await events.dead_letters.show(event_id)
        assert (letter["attempts"], letter["reason"], letter["error_type"], letter["error"]) == (
            *(3, "RetriesExhausted"),
            *("ValueError", "no good"),
        )
        assert events.attempts() == {"error": 3}


async def test_what_finds_no_place_is_retried_less_and_less_often_until_it_is_too_old(harness: Harness) -> None:
    harness.functions.do["f"] = fails(busy)
    async with harness.open() as events:
        await events.accept("f", "", b"{}", source="aws")
        await all_over(events, harness.clock)
        times = harness.functions.times()
        waits = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert waits[:10] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
        assert set(waits[9:]) == {300}
        assert 6 * HOUR - 300 <= times[-1] <= 6 * HOUR
        (letter,) = await events.dead_letters.last(None, 10)
        assert letter["reason"] == "EventAgeExceeded"


async def test_a_function_may_have_other_rules(harness: Harness) -> None:
    harness.functions.do |= {"never": fails(raised), "young": fails(busy)}
    async with harness.open() as events:
        await events.invoke_configs.put(EventInvokeConfig(function="never", max_retries=0))
        await events.invoke_configs.put(EventInvokeConfig(function="young", max_age_s=60))
        await events.accept("never", "", b"{}", source="aws")
        await events.accept("young", "", b"{}", source="aws")
        await all_over(events, harness.clock)
        assert harness.functions.times("never") == [0]
        assert max(harness.functions.times("young")) <= 60
    async with harness.open() as events:
        assert [config.max_retries for config in events.invoke_configs.all_of("never")] == [0]
        assert await events.invoke_configs.remove("never", "")
        assert not await events.invoke_configs.remove("never", "")


async def test_a_wall_clock_that_jumps_delays_and_brings_nothing(harness: Harness) -> None:
    harness.functions.do["f"] = fails(raised, 2)
    async with harness.open() as events:
        await events.accept("f", "", b"{}", source="aws")
        await settled(events)
        harness.clock.jump(-10 * HOUR)
        harness.clock.pass_by(59)
        await settled(events)
        assert harness.functions.times() == [0]
        harness.clock.jump(30 * HOUR)
        await all_over(events, harness.clock)
        assert harness.functions.times() == [0, 60, 180]
        assert events.status()["endings"] == {"succeeded": 1}


@pytest.mark.parametrize("jump", [-10 * HOUR, 0.0, 1 * HOUR])
async def test_another_daemon_goes_on_where_the_last_one_was(harness: Harness, jump: float) -> None:
    harness.functions.do["f"] = fails(raised, 1)
    async with harness.open() as events:
        await events.accept("f", "", b"{}", source="aws")
        await settled(events)
    harness.clock.jump(jump)
    async with harness.open() as events:
        harness.clock.pass_by(59)
        await settled(events)
        assert len(harness.functions.ran) == (2 if jump > 0 else 1)
        await all_over(events, harness.clock)
        assert len(harness.functions.ran) == 2
        # A clock that was set back by hours holds nothing up for longer than it ever had to wait.
        assert harness.functions.times()[1] <= 300


async def test_what_was_being_run_when_the_daemon_ended_is_run_by_the_next(harness: Harness) -> None:
    harness.functions.do["f"] = fails(lambda: errors.Draining("ending"), 1)
    harness.functions.holding = asyncio.Event()
    async with harness.open() as events:
        await events.accept("f", "", b"{}", source="aws")
        await until(lambda: harness.functions.ran)
        events.stop()
        with pytest.raises(errors.Draining):
            await events.accept("f", "", b"{}", source="aws")
    async with harness.open() as events:
        await all_over(events, harness.clock)
        assert events.status()["endings"] == {"succeeded": 1}


async def test_a_retry_of_an_sdk_is_not_a_second_event(harness: Harness) -> None:
    harness.functions.do["f"] = lambda payload: payload
    async with harness.open() as events:
        first = await events.accept("f", "", b"1", source="aws", retry_key="id")
    async with harness.open() as events:
        assert await events.accept("f", "", b"1", source="aws", retry_key="id") == first
        assert await events.accept("f", "", b"2", source="aws", retry_key="id") != first
        harness.clock.pass_by(301)
        assert await events.accept("f", "", b"1", source="aws", retry_key="id") != first


async def test_a_retry_is_no_event_of_another_function_that_has_the_name_now(harness: Harness) -> None:
    harness.functions.do["f"] = lambda payload: b"1"
    async with harness.open() as events:
        first = await events.accept("f", "", b"{}", source="aws", retry_key="k")
        harness.functions.incarnations["f"] = "second"
        second = await events.accept("f", "", b"{}", source="aws", retry_key="k")
        assert first != second
        await all_over(events, harness.clock)
        assert len(harness.functions.ran) == 2


async def test_a_full_disk_is_waited_for_and_what_ran_is_not_run_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.functions.do["f"] = lambda payload: b"1"
    async with harness.open() as events:
        harness.functions.holding = asyncio.Event()
        await events.accept("f", "", b"{}", source="aws")
        await until(lambda: harness.functions.ran)
        tried, end = [0], events.backend.end

        async def is_full(event: Event) -> None:
            tried[0] += 1
            if tried[0] < 4:
                raise errors.StorageFull
            await end(event)

        monkeypatch.setattr(events.backend, "end", is_full)
        harness.functions.holding.set()
        for pause_s in (1, 2, 4):
            await until(lambda: harness.clock.next_in() is not None)
            assert harness.clock.next_in() == pause_s
            harness.clock.pass_by(pause_s)
        await until(lambda: not sum(events.depth().values()))
        assert (tried[0], len(harness.functions.ran), events.status()["endings"]) == (4, 1, {"succeeded": 1})
