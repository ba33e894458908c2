"""InvokeWithResponseStream: what a client reads, by botocore's own decoder, and what happens when it goes wrong midway."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from sockd.http.aws.event_stream import encode
from tests.http.aws.conftest import request
from tests.http.aws.fake_lambda import FakeLambda
from tests.http.raw import Raw, Reply
from tests.http.worker_answers import STREAMS

pytestmark = pytest.mark.anyio
TYPE = "application/vnd.amazon.eventstream"


def path(name: str) -> str:
    return f"/2021-11-15/functions/{name}/response-streaming-invocations"


def events(body: bytes) -> list[tuple[str, bytes]]:
    """Kinds and payloads. Raises, if a checksum is wrong."""
    buffer = EventStreamBuffer()
    buffer.add_data(body)
    read = [(message.headers[":event-type"], message.payload) for message in buffer]
    assert buffer._data == b""
    return read


def completed(reply: Reply) -> tuple[bytes, dict[str, Any]]:
    """The answer put together, and how it ended."""
    *chunks, (last, reported) = events(reply.body)
    assert last == "InvokeComplete"
    assert {kind for kind, _ in chunks} <= {"PayloadChunk"}
    return b"".join(payload for _, payload in chunks), json.loads(reported)


@pytest.fixture(autouse=True)
def streams(worker: FakeLambda) -> None:
    worker.names.update(("echo", *STREAMS))


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=50), max_size=4), st.binary(max_size=200))
def test_any_message_is_read_as_it_was_written(headers: dict[str, str], payload: bytes) -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(encode(headers, payload))
    (message,) = list(buffer)
    assert (message.headers, message.payload) == (headers, payload)


async def test_pieces_come_as_chunks(client: Raw, worker: FakeLambda) -> None:
    reply = await client.ask(request("POST", path("streams"), ["one", "", "two"]))
    assert (reply.status, reply.headers["content-type"]) == (200, TYPE)
    assert reply.headers["x-amz-executed-version"] == "v1"
    assert "set-cookie" not in reply.headers
    assert events(reply.body) == [("PayloadChunk", b"one"), ("PayloadChunk", b"two"), ("InvokeComplete", b"{}")]


async def test_a_piece_is_there_before_the_next_is_made(client: Raw, worker: FakeLambda) -> None:
    client.send(request("POST", path("streams"), ["first", "wait", "last"]))
    assert b"first" in await client.until(b"first")
    worker.release.set()
    assert b"last" in await client.until(b"\r\n0\r\n\r\n")


async def test_a_function_that_does_not_stream_is_one_chunk(client: Raw) -> None:
    reply = await client.ask(request("POST", path("echo"), {"x": 1}))
    assert completed(reply) == (b'{"x": 1}', {})
    assert reply.headers["x-sockd-sandbox"] == "sandbox-7"


async def test_the_log_comes_last(client: Raw) -> None:
    reply = await client.ask(request("POST", path("echo"), 3, X_Amz_Log_Type="Tail"))
    body, reported = completed(reply)
    assert body == b"3"
    assert b"last line" in base64.b64decode(reported["LogResult"])


@pytest.mark.parametrize("name", ["raises", "times_out", "oom"])
async def test_what_failed_is_reported_in_the_last_event(client: Raw, name: str) -> None:
    for headers in ({}, {"X_Amz_Log_Type": "Tail"}):
        reply = await client.ask(request("POST", path(name), 3, **headers))
        body, reported = completed(reply)
        assert (reply.status, body, reported["ErrorCode"]) == (200, b"", "Unhandled")
        assert json.loads(reported["ErrorDetails"])["errorType"]
        assert ("LogResult" in reported) is bool(headers)


async def test_an_error_in_the_middle_does_not_lose_what_came_before(client: Raw) -> None:
    reply = await client.ask(request("POST", path("breaks"), ["half"]))
    body, reported = completed(reply)
    assert (body, reported["ErrorCode"]) == (b"half", "Unhandled")
    assert json.loads(reported["ErrorDetails"])["errorType"] == "ValueError"
    assert (await client.ask(request("POST", path("echo"), 3))).status == 200


@pytest.mark.parametrize(
    ("name", "headers", "status"),
    [
        ("none", {}, 404),
        ("busy", {}, 429),
        ("full", {}, 503),
        ("echo", {"X_Amz_Invocation_Type": "Event"}, 400),
        ("echo", {"X_Amz_Log_Type": "All"}, 400),
    ],
)
async def test_what_never_ran_is_an_error_as_of_any_operation(
    client: Raw, name: str, headers: dict[str, str], status: int
) -> None:
    reply = await client.ask(request("POST", path(name), 3, **headers))
    assert (reply.status, reply.headers["content-type"]) == (status, "application/json")


async def test_a_dry_run_runs_nothing(client: Raw, worker: FakeLambda) -> None:
    reply = await client.ask(request("POST", path("echo"), 3, X_Amz_Invocation_Type="DryRun"))
    assert reply.status == 204
    assert worker.invoked == []
