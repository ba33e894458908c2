"""Functions that stream at their URLs: what is passed on, what is kept, and whose head it has."""

from __future__ import annotations

import json

import pytest

from sockd.functions.registry.function_url import Cors
from sockd.http.urls.response import BadReply
from sockd.http.urls.streams import PRELUDE_BYTES, Begun, prelude
from tests.http.raw import Raw
from tests.http.urls.conftest import MAX_PAYLOAD, UrlWorker, ask

pytestmark = pytest.mark.anyio
JSON = ("content-type", "application/json")
BYTES = [(b"content-type", b"application/octet-stream")]
SSE = [(b"content-type", b"text/event-stream"), (b"set-cookie", b"a=1"), (b"x-sockd-cold", b"7"), (b"connection", b"x")]
SSE += [(b"x-amzn-trace-id", b"mine")]


async def test_a_stream_is_passed_on_with_its_head_and_ours(client: Raw, worker: UrlWorker) -> None:
    cors = Cors(allow_origins=["*"])
    url = await worker.urls.create("streaming", mode="RESPONSE_STREAM", cors=cors)
    worker.streams(201, [*SSE, (b"access-control-allow-origin", b"own")], [b"data: 1\n\n", b"data: 2\n\n"])
    for prefix, host in (("", ""), (f"/url/{url.id}", "localhost")):
        reply = await client.ask(ask(url, "GET", f"{prefix}/", host=host))
        assert (reply.status, reply.body) == (201, b"data: 1\n\ndata: 2\n\n")
        assert reply.headers["transfer-encoding"] == "chunked"
        assert (reply.headers["content-type"], reply.headers["set-cookie"]) == ("text/event-stream", "a=1")
        assert reply.headers["access-control-allow-origin"] == "*"
        assert reply.headers["x-sockd-cold"] == "1" and "x-amzn-trace-id" not in reply.headers
        assert ("content-security-policy" in reply.headers) is bool(prefix)


async def test_a_piece_is_there_before_the_next_is_made(client: Raw, worker: UrlWorker) -> None:
    url = await worker.urls.create("streaming", mode="RESPONSE_STREAM")
    for headers in (SSE, BYTES):
        worker.release.clear()
        worker.streams(200, headers, [b"first", b"", b"last"])
        client.send(ask(url, "GET", "/"))
        assert b"first" in await client.until(b"first")
        worker.release.set()
        assert b"last" in await client.until(b"\r\n0\r\n\r\n")


async def test_buffered_it_is_one_answer(client: Raw, worker: UrlWorker) -> None:
    url = await worker.urls.create("streaming")
    worker.release.set()
    worker.streams(203, SSE, [b"one", b"", b"two"])
    reply = await client.ask(ask(url, "GET", "/"))
    assert (reply.status, reply.body, reply.headers["content-length"]) == (203, b"onetwo", "6")
    assert (reply.headers["content-type"], reply.headers["set-cookie"]) == ("text/event-stream", "a=1")
    assert reply.headers["x-sockd-cold"] == "1" and "x-amzn-trace-id" not in reply.headers


async def test_buffered_it_may_be_as_large_as_any_answer(client: Raw, worker: UrlWorker) -> None:
    url = await worker.urls.create("streaming")
    worker.streams(200, SSE, [b"x" * MAX_PAYLOAD, b"y"])
    reply = await client.ask(ask(url, "GET", "/"))
    assert (reply.status, reply.headers["x-sockd-error"]) == (502, "Function.ResponseSizeTooLarge")


async def test_a_function_that_does_not_stream_answers_as_ever(client: Raw, worker: UrlWorker) -> None:
    url = await worker.urls.create("says", mode="RESPONSE_STREAM")
    worker.says({"statusCode": 202, "body": "x"})
    reply = await client.ask(ask(url, "GET", "/"))
    assert (reply.status, reply.body, reply.headers["content-length"]) == (202, b"x", "1")


async def test_an_error_after_the_head_cuts_the_answer(client: Raw, worker: UrlWorker) -> None:
    url = await worker.urls.create("streaming", mode="RESPONSE_STREAM")
    worker.streams(200, SSE, [b"half"], fails=True)
    client.send(ask(url, "GET", "/"))
    assert (await client.rest()).endswith(b"\r\n4\r\nhalf\r\n")


async def test_an_error_before_anything_went_out_is_reported(client: Raw, worker: UrlWorker) -> None:
    url = await worker.urls.create("streaming", mode="RESPONSE_STREAM")
    worker.streams(200, BYTES, [b'{"statusCode":'], fails=True)
    assert (await client.ask(ask(url, "GET", "/"))).status == 502
    worker.streams(200, BYTES, [b'{"statusCode": 200, "headers": {"a": "\\n"}}' + bytes(8)])
    reply = await client.ask(ask(url, "GET", "/"))
    assert (reply.status, reply.headers["x-sockd-error"]) == (502, "Function.InvalidResponse")


PRELUDE = json.dumps({"statusCode": 203, "headers": {"Content-Type": "text/html"}, "cookies": ["a=1"]}).encode()


@pytest.mark.parametrize(
    "pieces",
    [
        [PRELUDE + bytes(8) + b"<p>"],
        [PRELUDE, bytes(8), b"<p>"],
        [PRELUDE[:5], PRELUDE[5:20], PRELUDE[20:] + bytes(3), bytes(5) + b"<", b"p>"],
    ],
)
async def test_the_head_that_custom_runtimes_write_themselves(
    client: Raw, worker: UrlWorker, pieces: list[bytes]
) -> None:
    url = await worker.urls.create("streaming", mode="RESPONSE_STREAM")
    worker.streams(200, BYTES, pieces)
    reply = await client.ask(ask(url, "GET", "/"))
    assert (reply.status, reply.body) == (203, b"<p>")
    assert (reply.headers["content-type"], reply.headers["set-cookie"]) == ("text/html", "a=1")


@pytest.mark.parametrize("body", [b"", b"{", b'{"stat', b'{"statusCode": 200}', b"\0" * 30, b"{}" + bytes(8), b"\n"])
async def test_what_only_looks_as_if_it_had_one_is_passed_on(client: Raw, worker: UrlWorker, body: bytes) -> None:
    url = await worker.urls.create("streaming", mode="RESPONSE_STREAM")
    worker.streams(200, BYTES, [body])
    reply = await client.ask(ask(url, "GET", "/"))
    assert (reply.status, reply.body, reply.headers["content-type"]) == (200, body, "application/octet-stream")


def test_lines_of_json_are_not_waited_for() -> None:
    for first in (b'{"a": 1}\n', b"[", b"x", b'{"status": 1}', b'{"statusCode": 1' + b" " * PRELUDE_BYTES):
        assert prelude(first) == Begun(200, [], first)
    assert prelude(b'{"statusCode": 1') is None
    assert prelude(b'{"cookies": ["a=b"]}' + bytes(9)) == Begun(200, [JSON, ("set-cookie", "a=b")], b"\0")
    for bad in (b'{"statusCode": 1}' + bytes(8), b'{"headers": {]}' + bytes(8)):
        with pytest.raises(BadReply):
            prelude(bad)
