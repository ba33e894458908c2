"""Asynchronous invocation on a clock that the test turns: retries, ages, destinations, dead letters, fairness."""

from __future__ import annotations

import asyncio
import itertools
import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sockd import errors
from sockd.config import EventsConfig
from sockd.http.answers import error_body
from sockd.invoke_request import InvokeRequest
from sockd.lambdas.destinations import Directories
from sockd.lambdas.dispatcher import Functions
from sockd.lambdas.event_configs import EventInvokeConfig
from sockd.lambdas.event_store import EventStore
from sockd.lambdas.events import Events
from sockd.telemetry import Invocation
from tests.support.fake_clock import FakeClock, until

pytestmark = pytest.mark.anyio
HOUR = 3600.0


class FakeFunctions:
    """Functions by name: each is what it does with a payload; `ran` is what was asked of them, and when."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.do: dict[str, Callable[[bytes], bytes]] = {}
        self.ran: list[tuple[str, bytes, float]] = []
        self.ids: set[bytes] = set()
        self.holding: asyncio.Event | None = None
        self.places = 10
        self.at_once = self.most_at_once = 0

    async def invoke(self, request: InvokeRequest) -> Invocation:
        self.ran.append((request.name, request.payload, self.clock.monotonic()))
        self.ids.add(request.id)
        self.check(request.name, "")
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.holding is not None:
                await self.holding.wait()
            return Invocation(self.do[request.name](request.payload), "warm", "s", "7")
        finally:
            self.at_once -= 1

    def check(self, name: str, qualifier: str) -> None:
        if name not in self.do:
            raise errors.NoSuchFunction(f"no function {name!r}")

    def times(self, name: str = "f") -> list[float]:
        """When a function ran, in seconds after the first time."""
        moments = [moment for ran, _, moment in self.ran if ran == name]
        return [moment - moments[0] for moment in moments]


class House:
    """Events over a file, functions and a clock."""

    def __init__(self, path: Path, **config: Any) -> None:
        self.path = path
        self.clock = FakeClock()
        self.functions = FakeFunctions(self.clock)
        self.config = EventsConfig(**config)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Events]:
        """A daemon's life; leaving it is SIGTERM."""
        functions = self.functions
        events = Events(
            EventStore.open(self.path / "events.sqlite"),
            Functions(functions.invoke, functions.check, lambda name: functions.places, error_body),
            Directories(self.path / "directories", {}),
            self.config,
            self.clock,
        )
        events.start()
        try:
            yield events
        finally:
            if functions.holding is not None:
                functions.holding.set()
            await events.aclose()

    def record(self, directory: str, event_id: str) -> Any:
        return json.loads((self.path / "directories" / directory / f"{event_id}.json").read_bytes())


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def fails(error: Callable[[], errors.SockdError], times: int = 1000) -> Callable[[bytes], bytes]:
    """A function that fails so many times, then answers "ok"."""
    left = [times]

    def do(payload: bytes) -> bytes:
        left[0] -= 1
        if left[0] >= 0:
            raise error()
        return b'"ok"'

    return do


def raised() -> errors.SockdError:
    return errors.FunctionFailed("ValueError", "no good", ["line 1"])


def busy() -> errors.SockdError:
    return errors.TooManyRequests("10 running")


async def settled(events: Events) -> None:
    """Until nothing runs."""
    await asyncio.sleep(0)  # what has ended a run has yet to look who is next
    await asyncio.sleep(0)
    await until(lambda: not events.depth()["running"])
    await asyncio.sleep(0)


async def all_over(events: Events, clock: FakeClock, step_s: float = 1.0) -> None:
    """Let time pass until every event is over."""
    async with asyncio.timeout(15):
        while sum(events.depth().values()):
            await settled(events)
            clock.pass_by(clock.next_in() or step_s)


async def test_an_event_runs_once_and_is_gone(house: House) -> None:
    house.functions.do["f"] = lambda payload: payload
    async with house.open() as events:
        event_id = await events.accept("f", "", b'{"a": 1}', source="run")
        await all_over(events, house.clock)
        assert [(name, payload) for name, payload, _ in house.functions.ran] == [("f", b'{"a": 1}')]
        assert {str(each) for each in map(_text, house.functions.ids)} == {event_id}
        assert events.status()["endings"] == {"succeeded": 1}
    async with house.open() as events:
        assert events.depth() == {"waiting": 0, "running": 0}


def _text(event_id: bytes) -> str:
    return str(uuid.UUID(bytes=event_id))


async def test_errors_of_the_function_are_retried_after_one_and_two_minutes(house: House) -> None:
    house.functions.do["f"] = fails(raised)
    async with house.open() as events:
        event_id = await events.accept("f", "", b'{"a": 1}', source="aws")
        await all_over(events, house.clock)
        assert house.functions.times() == [0, 60, 180]
        assert len(house.functions.ids) == 1
        letter = await events.dead_letters.show(event_id)
        assert (letter["attempts"], letter["reason"], letter["error_type"], letter["error"]) == (
            *(3, "RetriesExhausted"),
            *("ValueError", "no good"),
        )
        assert events.attempts() == {"error": 3}


async def test_what_finds_no_place_is_retried_less_and_less_often_until_it_is_too_old(house: House) -> None:
    house.functions.do["f"] = fails(busy)
    async with house.open() as events:
        await events.accept("f", "", b"{}", source="aws")
        await all_over(events, house.clock)
        times = house.functions.times()
        waits = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert waits[:10] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
        assert set(waits[9:]) == {300}
        assert 6 * HOUR - 300 <= times[-1] <= 6 * HOUR
        (letter,) = await events.dead_letters.last(None, 10)
        assert letter["reason"] == "EventAgeExceeded"


async def test_a_function_may_have_other_rules(house: House) -> None:
    house.functions.do |= {"never": fails(raised), "young": fails(busy)}
    async with house.open() as events:
        await events.put_event_config(EventInvokeConfig(function="never", max_retries=0))
        await events.put_event_config(EventInvokeConfig(function="young", max_age_s=60))
        await events.accept("never", "", b"{}", source="aws")
        await events.accept("young", "", b"{}", source="aws")
        await all_over(events, house.clock)
        assert house.functions.times("never") == [0]
        assert max(house.functions.times("young")) <= 60
    async with house.open() as events:
        assert [config.max_retries for config in events.event_configs("never")] == [0]
        assert await events.remove_event_config("never", "")
        assert not await events.remove_event_config("never", "")


async def test_a_wall_clock_that_jumps_delays_and_brings_nothing(house: House) -> None:
    house.functions.do["f"] = fails(raised, 2)
    async with house.open() as events:
        await events.accept("f", "", b"{}", source="aws")
        await settled(events)
        house.clock.jump(-10 * HOUR)
        house.clock.pass_by(59)
        await settled(events)
        assert house.functions.times() == [0]
        house.clock.jump(30 * HOUR)
        await all_over(events, house.clock)
        assert house.functions.times() == [0, 60, 180]
        assert events.status()["endings"] == {"succeeded": 1}


@pytest.mark.parametrize("jump", [-10 * HOUR, 0.0, 1 * HOUR])
async def test_another_daemon_goes_on_where_the_last_one_was(house: House, jump: float) -> None:
    house.functions.do["f"] = fails(raised, 1)
    async with house.open() as events:
        await events.accept("f", "", b"{}", source="aws")
        await settled(events)
    house.clock.jump(jump)
    async with house.open() as events:
        house.clock.pass_by(59)
        await settled(events)
        assert len(house.functions.ran) == (2 if jump > 0 else 1)
        await all_over(events, house.clock)
        assert len(house.functions.ran) == 2
        # A clock that was set back by hours holds nothing up for longer than it ever had to wait.
        assert house.functions.times()[1] <= 300


async def test_what_was_being_run_when_the_daemon_ended_is_run_by_the_next(house: House) -> None:
    house.functions.do["f"] = fails(lambda: errors.Draining("ending"), 1)
    house.functions.holding = asyncio.Event()
    async with house.open() as events:
        await events.accept("f", "", b"{}", source="aws")
        await until(lambda: house.functions.ran)
        events.stop()
        with pytest.raises(errors.Draining):
            await events.accept("f", "", b"{}", source="aws")
    async with house.open() as events:
        await all_over(events, house.clock)
        assert events.status()["endings"] == {"succeeded": 1}


async def test_a_record_goes_to_a_directory(house: House) -> None:
    house.functions.do |= {"good": lambda payload: b'{"answer": 42}', "bad": fails(raised)}
    async with house.open() as events:
        for name in ("good", "bad"):
            config = EventInvokeConfig(
                function=name, max_retries=1, on_success="directory:done", on_failure="directory:failed"
            )
            await events.put_event_config(config)
        good = await events.accept("good", "", b'{"a": 1}', source="aws")
        bad = await events.accept("bad", "", b"not JSON", source="aws")
        await all_over(events, house.clock)
        record = house.record("done", good)
        assert record.pop("timestamp") == "2023-11-14T22:13:20.000Z"
        arn = "arn:aws:lambda:local:000000000000:function:"
        assert record == {
            "version": "1.0",
            "requestContext": {
                "requestId": good,
                "functionArn": f"{arn}good:$LATEST",
                "condition": "Success",
                "approximateInvokeCount": 1,
            },
            "requestPayload": {"a": 1},
            "responseContext": {"statusCode": 200, "executedVersion": "7"},
            "responsePayload": {"answer": 42},
        }
        record = house.record("failed", bad)
        assert record["requestContext"]["condition"] == "RetriesExhausted"
        assert record["requestContext"]["approximateInvokeCount"] == 2
        assert record["requestPayload"] == "not JSON"
        assert record["responseContext"]["functionError"] == "Unhandled"
        assert record["responsePayload"]["errorMessage"] == "no good"
        assert events.dead() == 0
        assert sorted(path.name for path in (house.path / "directories" / "done").iterdir()) == [f"{good}.json"]


async def test_a_record_is_the_event_of_another_function(house: House) -> None:
    house.functions.do |= {"f": lambda payload: b'"made"', "next": lambda payload: b"1"}
    async with house.open() as events:
        arn = "arn:aws:lambda:eu-central-1:123456789012:function:next"
        await events.put_event_config(EventInvokeConfig(function="f", on_success=arn))
        await events.accept("f", "", b'{"a": 1}', source="aws")
        await all_over(events, house.clock)
        name, payload, _ = house.functions.ran[1]
        assert name == "next"
        assert json.loads(payload)["responsePayload"] == "made"


async def test_functions_that_feed_each_other_are_stopped(house: House) -> None:
    house.functions.do["f"] = lambda payload: b"1"
    async with house.open() as events:
        await events.put_event_config(EventInvokeConfig(function="f", on_success="f"))
        await events.accept("f", "", b"{}", source="aws")
        await all_over(events, house.clock)
        assert len(house.functions.ran) == 17
        (letter,) = await events.dead_letters.last(None, 10)
        assert "DeliveryFailed" in letter["reason"]


@pytest.mark.parametrize("destination", ["file:///etc/cron.d", "directory:../x", "arn:aws:sqs:eu:1:q", "no such"])
async def test_other_destinations_are_refused(house: House, destination: str) -> None:
    house.functions.do["f"] = lambda payload: b"1"
    async with house.open() as events:
        with pytest.raises(errors.BadRequest):
            await events.put_event_config(EventInvokeConfig(function="f", on_success=destination))


async def test_a_destination_that_is_gone_makes_a_dead_letter(house: House) -> None:
    house.functions.do["f"] = lambda payload: b"1"
    async with house.open() as events:
        await events.put_event_config(EventInvokeConfig(function="f", on_success="gone"))
        event_id = await events.accept("f", "", b'{"a": 1}', source="aws")
        await all_over(events, house.clock)
        letter = await events.dead_letters.show(event_id)
        assert letter["reason"].startswith("DeliveryFailed: gone: no function")
        assert json.loads(bytes(letter["payload"])) == {"a": 1}


async def test_a_dead_letter_can_be_tried_again_or_deleted(house: House) -> None:
    house.functions.do["f"] = fails(lambda: errors.InvalidEvent("not JSON"), 3)
    async with house.open() as events:
        first, second, third = [await events.accept("f", "", b"x", source="aws") for _ in range(3)]
        await all_over(events, house.clock)
        assert len(house.functions.ran) == 3  # what cannot be right is not retried
        assert events.dead() == 3
        assert await events.dead_letters.retry(None, first) == 1
        await all_over(events, house.clock)
        assert await events.dead_letters.discard(None, second) == 1
        assert [letter["id"] for letter in await events.dead_letters.last("f", 10)] == [third]
        for unknown in (first, "nonsense"):
            with pytest.raises(errors.SockdError, match="no dead letter"):
                await events.dead_letters.retry(None, unknown)
        assert await events.dead_letters.retry("f", None) == 1
        assert await events.dead_letters.discard("other", None) == 0


async def test_a_removed_function_leaves_dead_letters(house: House) -> None:
    house.functions.do |= {"f": fails(raised), "g": fails(raised)}
    async with house.open() as events:
        await events.put_event_config(EventInvokeConfig(function="f", max_retries=1))
        for _ in range(3):
            await events.accept("f", "", b"{}", source="aws")
        await events.accept("g", "", b"{}", source="aws")
        await settled(events)
        del house.functions.do["f"], house.functions.do["g"]
        await events.forget("f")
        assert {letter["reason"] for letter in await events.dead_letters.last("f", 10)} == {"FunctionRemoved"}
        assert (events.dead(), events.depth()["waiting"], events.event_configs("f")) == (3, 1, [])
        with pytest.raises(errors.NoSuchFunction):
            await events.accept("f", "", b"{}", source="aws")
        await all_over(events, house.clock)  # the daemon was killed before it could tell of g
        (letter,) = await events.dead_letters.last("g", 10)
        assert letter["error_type"] == "ResourceNotFoundException"


async def test_a_retry_of_an_sdk_is_not_a_second_event(house: House) -> None:
    house.functions.do["f"] = lambda payload: payload
    async with house.open() as events:
        first = await events.accept("f", "", b"1", source="aws", retry_key="id")
    async with house.open() as events:
        assert await events.accept("f", "", b"1", source="aws", retry_key="id") == first
        assert await events.accept("f", "", b"2", source="aws", retry_key="id") != first
        house.clock.pass_by(301)
        assert await events.accept("f", "", b"1", source="aws", retry_key="id") != first


async def test_the_queue_is_bounded(tmp_path: Path) -> None:
    house = House(tmp_path, max_events=3, max_bytes=100, max_payload_bytes=60, function_share=1.0)
    house.functions.do["f"] = fails(raised)
    async with house.open() as events:
        with pytest.raises(errors.RequestTooLarge, match="61 bytes"):
            await events.accept("f", "", bytes(61), source="aws")
        await events.accept("f", "", bytes(60), source="aws")
        with pytest.raises(errors.TooManyRequests, match="bytes"):
            await events.accept("f", "", bytes(41), source="aws")
        coming = [events.accept("f", "", b"1", source="aws") for _ in range(4)]
        results = await asyncio.gather(*coming, return_exceptions=True)
        assert [isinstance(each, errors.TooManyRequests) for each in results] == [False, False, True, True]


async def test_no_function_takes_all_of_the_queue(tmp_path: Path) -> None:
    house = House(tmp_path, max_events=8, max_bytes=100)
    house.functions.do |= {"f": fails(raised), "g": fails(raised), "h": fails(raised)}
    async with house.open() as events:
        for _ in range(4):
            await events.accept("f", "", b"1", source="aws")
        with pytest.raises(errors.TooManyEvents, match="share"):
            await events.accept("f", "", b"1", source="aws")
        await events.accept("g", "", bytes(40), source="aws")
        with pytest.raises(errors.TooManyEvents, match="share"):
            await events.accept("g", "", bytes(11), source="aws")
        await events.accept("h", "", b"1", source="aws")
        await all_over(events, house.clock)
        await events.accept("f", "", b"1", source="aws")


async def test_what_is_due_while_all_places_are_taken_waits_for_a_place_and_not_for_the_clock(tmp_path: Path) -> None:
    house = House(tmp_path, concurrency=1)
    house.functions.do["f"] = lambda payload: b"1"
    house.functions.holding = asyncio.Event()
    async with house.open() as events:
        for _ in range(3):
            await events.accept("f", "", b"{}", source="aws")
        await until(lambda: house.functions.ran)
        assert house.clock.next_in() is None
        shown = [await events.show(each["id"]) for each in events.waiting("f", 10)]
        assert [each["state"] for each in shown] == ["running", "waiting", "waiting"]
        house.functions.holding.set()
        await all_over(events, house.clock)
        assert len(house.functions.ran) == 3


async def test_functions_take_turns_and_none_takes_all_places(tmp_path: Path) -> None:
    house = House(tmp_path, concurrency=4)
    house.functions.do |= {"many": lambda payload: b"1", "few": lambda payload: b"1"}
    house.functions.places = 3
    house.functions.holding = asyncio.Event()
    async with house.open() as events:
        await asyncio.gather(*(events.accept("many", "", b"{}", source="aws") for _ in range(20)))
        await until(lambda: len(house.functions.ran) == 3)
        await asyncio.gather(*(events.accept("few", "", b"{}", source="aws") for _ in range(5)))
        await until(lambda: len(house.functions.ran) == 4)
        assert house.functions.ran[-1][0] == "few"
        house.functions.holding.set()
        house.functions.holding = None
        await all_over(events, house.clock)
        names = [name for name, _, _ in house.functions.ran]
        assert names[4:13].count("few") == 4  # in turns, though twenty of the other came first
        assert house.functions.most_at_once <= 4
        assert events.status()["endings"] == {"succeeded": 25}


async def test_a_full_disk_is_waited_for_and_what_ran_is_not_run_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.functions.do["f"] = lambda payload: b"1"
    async with house.open() as events:
        house.functions.holding = asyncio.Event()
        await events.accept("f", "", b"{}", source="aws")
        await until(lambda: house.functions.ran)
        tried, run = [0], events.store.run

        async def is_full(work: Callable[[EventStore], Any]) -> Any:
            tried[0] += 1
            if tried[0] < 4:
                raise errors.StorageFull
            return await run(work)

        monkeypatch.setattr(events.store, "run", is_full)
        house.functions.holding.set()
        for pause_s in (1, 2, 4):
            await until(lambda: house.clock.next_in() is not None)
            assert house.clock.next_in() == pause_s
            house.clock.pass_by(pause_s)
        await until(lambda: not sum(events.depth().values()))
        assert (tried[0], len(house.functions.ran), events.status()["endings"]) == (4, 1, {"succeeded": 1})
