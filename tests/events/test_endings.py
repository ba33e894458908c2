"""What is left of an event that is over: a record at its destination, or a dead letter."""

from __future__ import annotations

import asyncio
import json
import stat

import msgspec
import pytest

from sockd.base import errors
from sockd.events.event_configs import EventInvokeConfig
from tests.events.harness import Harness, all_over, fails, raised, settled
from tests.support.fake_clock import until

pytestmark = pytest.mark.anyio


async def test_a_record_goes_to_a_directory(harness: Harness) -> None:
    harness.functions.do |= {"good": lambda payload: b'{"answer": 42}', "bad": fails(raised)}
    async with harness.open() as events:
        for name in ("good", "bad"):
            config = EventInvokeConfig(
                function=name, max_retries=1, on_success="directory:done", on_failure="directory:failed"
            )
            await events.invoke_configs.put(config)
        good = await events.accept("good", "", b'{"a": 1}', source="aws")
        bad = await events.accept("bad", "", b"not JSON", source="aws")
        await all_over(events, harness.clock)
        record = harness.record("done", good)
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
        record = harness.record("failed", bad)
        assert record["requestContext"]["condition"] == "RetriesExhausted"
        assert record["requestContext"]["approximateInvokeCount"] == 2
        assert record["requestPayload"] == "not JSON"
        assert record["responseContext"]["functionError"] == "Unhandled"
        assert record["responsePayload"]["errorMessage"] == "no good"
        assert events.dead() == 0
        assert sorted(path.name for path in (harness.path / "directories" / "done").iterdir()) == [f"{good}.json"]
        for directory in (harness.path / "directories", harness.path / "directories" / "done"):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700


async def test_a_destination_that_is_set_while_an_event_runs_gets_its_record(harness: Harness) -> None:
    harness.functions.do["f"] = lambda payload: b"1"
    harness.functions.holding = asyncio.Event()
    async with harness.open() as events:
        accepted = await events.accept("f", "", b"1", source="aws")
        await until(lambda: harness.functions.at_once)
        await events.invoke_configs.put(EventInvokeConfig(function="f", on_success="directory:done"))
        harness.functions.holding.set()
        await all_over(events, harness.clock)
        assert harness.record("done", accepted)["responsePayload"] == 1


async def test_a_record_is_the_event_of_another_function(harness: Harness) -> None:
    harness.functions.do |= {"f": lambda payload: b'"made"', "next": lambda payload: b"1"}
    async with harness.open() as events:
        arn = "arn:aws:lambda:local:000000000000:function:next"
        await events.invoke_configs.put(EventInvokeConfig(function="f", on_success=arn))
        await events.accept("f", "", b'{"a": 1}', source="aws")
        await all_over(events, harness.clock)
        name, payload, _ = harness.functions.ran[1]
        assert name == "next"
        assert json.loads(payload)["responsePayload"] == "made"


async def test_functions_that_feed_each_other_are_stopped(harness: Harness) -> None:
    harness.functions.do["f"] = harness.functions.do["g"] = lambda payload: b"1"
    async with harness.open() as events:
        await events.invoke_configs.put(EventInvokeConfig(function="f", on_success="g"))
        await events.invoke_configs.put(EventInvokeConfig(function="g", on_success="f"))
        await events.accept("f", "", b"{}", source="aws")
        await all_over(events, harness.clock)
        assert len(harness.functions.ran) == 17
        (letter,) = await events.dead_letters.last(None, 10)
        assert "DeliveryFailed" in letter["reason"]


@pytest.mark.parametrize("destination", ["f", "f:1", "arn:aws:lambda:local:000000000000:function:f"])
@pytest.mark.parametrize("side", ["on_success", "on_failure"])
async def test_a_function_is_no_destination_of_its_own(harness: Harness, side: str, destination: str) -> None:
    harness.functions.do["f"] = lambda payload: b"1"
    async with harness.open() as events:
        with pytest.raises(errors.BadRequest, match="is the function itself"):
            await events.invoke_configs.put(
                msgspec.structs.replace(EventInvokeConfig(function="f"), **{side: destination})
            )
        assert events.invoke_configs.all_of("f") == []


@pytest.mark.parametrize("destination", ["file:///etc/cron.d", "directory:../x", "arn:aws:sqs:eu:1:q", "no such"])
async def test_other_destinations_are_refused(harness: Harness, destination: str) -> None:
    harness.functions.do["f"] = lambda payload: b"1"
    async with harness.open() as events:
        with pytest.raises(errors.BadRequest):
            await events.invoke_configs.put(EventInvokeConfig(function="f", on_success=destination))


@pytest.mark.parametrize("where", ["eu-central-1:000000000000", "local:123456789012"])
async def test_a_function_of_another_region_or_account_is_no_destination(harness: Harness, where: str) -> None:
    harness.functions.do |= {"f": lambda payload: b"1", "g": lambda payload: b"1"}
    async with harness.open() as events:
        with pytest.raises(errors.BadRequest, match="is in another region or account"):
            await events.invoke_configs.put(
                EventInvokeConfig(function="f", on_success=f"arn:aws:lambda:{where}:function:g")
            )
        assert events.invoke_configs.all_of("f") == []


async def test_a_destination_that_is_not_there_is_refused(harness: Harness) -> None:
    harness.functions.do["f"] = lambda payload: b"1"
    wanted = EventInvokeConfig(function="f")
    async with harness.open() as events:
        for side in ("on_success", "on_failure"):
            with pytest.raises(errors.BadRequest, match="'nobody' is not there: no function 'nobody'; deploy the"):
                await events.invoke_configs.put(msgspec.structs.replace(wanted, **{side: "nobody"}))
            with pytest.raises(errors.BadRequest, match="no directory of this host"):
                await events.invoke_configs.put(msgspec.structs.replace(wanted, **{side: "directory:missing"}))
        assert events.invoke_configs.all_of("f") == []


async def test_a_destination_that_is_gone_makes_a_dead_letter(harness: Harness) -> None:
    harness.functions.do["f"] = harness.functions.do["gone"] = lambda payload: b"1"
    async with harness.open() as events:
        await events.invoke_configs.put(EventInvokeConfig(function="f", on_success="gone"))
        del harness.functions.do["gone"]
        event_id = await events.accept("f", "", b'{"a": 1}', source="aws")
        await all_over(events, harness.clock)
        letter = await events.dead_letters.show(event_id)
        assert letter["reason"].startswith("DeliveryFailed: gone: no function")
        assert json.loads(bytes(letter["payload"])) == {"a": 1}


async def test_a_dead_letter_can_be_tried_again_or_deleted(harness: Harness) -> None:
    harness.functions.do["f"] = fails(lambda: errors.InvalidEvent("not JSON"), 3)
    async with harness.open() as events:
        first, second, third = [await events.accept("f", "", b"x", source="aws") for _ in range(3)]
        await all_over(events, harness.clock)
        assert len(harness.functions.ran) == 3  # what cannot be right is not retried
        assert events.dead() == 3
        assert await events.dead_letters.retry(None, first) == 1
        await all_over(events, harness.clock)
        assert await events.dead_letters.discard(None, second) == 1
        assert [letter["id"] for letter in await events.dead_letters.last("f", 10)] == [third]
        for unknown in (first, "nonsense"):
            with pytest.raises(errors.SockdError, match="no dead letter"):
                await events.dead_letters.retry(None, unknown)
        assert await events.dead_letters.retry("f", None) == 1
        assert await events.dead_letters.discard("other", None) == 0


async def test_a_removed_function_leaves_dead_letters(harness: Harness) -> None:
    harness.functions.do |= {"f": fails(raised), "g": fails(raised)}
    async with harness.open() as events:
        await events.invoke_configs.put(EventInvokeConfig(function="f", max_retries=1))
        for _ in range(3):
            await events.accept("f", "", b"{}", source="aws")
        await events.accept("g", "", b"{}", source="aws")
        await settled(events)
        del harness.functions.do["f"], harness.functions.do["g"]
        await events.forget("f")
        assert {letter["reason"] for letter in await events.dead_letters.last("f", 10)} == {"FunctionRemoved"}
        assert (events.dead(), events.depth()["waiting"], events.invoke_configs.all_of("f")) == (3, 1, [])
        with pytest.raises(errors.NoSuchFunction):
            await events.accept("f", "", b"{}", source="aws")
        await all_over(events, harness.clock)  # the daemon was killed before it could tell of g
        (letter,) = await events.dead_letters.last("g", 10)
        assert letter["error_type"] == "ResourceNotFoundException"
