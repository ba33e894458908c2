"""Connections that misbehave: slow, oversized, ambiguous, half closed, too many."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from sockd.base.config import HttpConfig
from sockd.http.front import Front
from sockd.http.server.limits import ConnectionLimits
from sockd.http.server.listening.sockets import bind_tcp
from sockd.http.server.server import HttpServer
from sockd.http.server.transport import Transport
from tests.http.fake_worker import FakeWorker
from tests.http.raw import get, post, raw

pytestmark = pytest.mark.anyio
Serve = Callable[..., Awaitable[HttpServer]]
CHUNKED = b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
async def serve(worker: FakeWorker) -> AsyncIterator[Serve]:
    servers: list[HttpServer] = []

    async def serve(limits: ConnectionLimits | None = None, keep_alive_s: int = 75) -> HttpServer:
        front = Front(worker, HttpConfig(listen="127.0.0.1:0"))
        servers.append(HttpServer(front, bind_tcp("127.0.0.1:0"), limits=limits, keep_alive_s=keep_alive_s))
        await servers[0].start()
        return servers[0]

    yield serve
    for server in servers:
        await server.aclose(0)


@pytest.mark.parametrize(
    "request_bytes",
    [
        CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\nGET /status HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /run/echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
        b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: +2\r\n\r\n{}",
        b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0x2\r\n\r\n{}",
        b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length : 2\r\n\r\n{}",
        b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\n folded: 1\r\nContent-Length: 2\r\n\r\n{}",
        CHUNKED + b"\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"GET /run/echo HTTP/9.9\r\n\r\n",
        b"GET /run/echo HTTP/1.1\r\nHost: local\x00host\r\n\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_a_request_without_one_meaning_is_refused_and_the_connection_closed(
    serve: Serve, worker: FakeWorker, request_bytes: bytes
) -> None:
    async with raw((await serve()).port) as client:
        reply = await client.ask(request_bytes)
        assert 400 <= reply.status < 500
        assert reply.json["errorType"]
        assert await client.rest() == b"", "nothing after the refusal is taken for a request"
    assert worker.invoked == []


@pytest.mark.parametrize(
    "codings",
    [b"gzip, chunked", b"GZIP,Chunked", b"gzip\r\nTransfer-Encoding: chunked", b", chunked"],
)
async def test_a_body_that_is_coded_inside_of_its_chunks_is_a_501(
    serve: Serve, worker: FakeWorker, codings: bytes
) -> None:
    async with raw((await serve()).port) as client:
        head = b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: " + codings
        reply = await client.ask(head + b"\r\n\r\n4\r\n\x1f\x8b\x08\x00\r\n0\r\n\r\n")
        assert reply.status == 501 and "Content-Encoding" in reply.json["errorMessage"]
        assert await client.rest() == b""
    assert worker.invoked == []


@pytest.mark.parametrize("version", [b"", b" HTTP/0.9", b" HTTP/2.0"])
async def test_a_version_that_is_not_spoken_is_a_505(serve: Serve, worker: FakeWorker, version: bytes) -> None:
    async with raw((await serve()).port) as client:
        reply = await client.ask(b"GET /run/echo" + version + b"\r\nHost: localhost\r\n\r\n")
        assert reply.status == 505 and "HTTP/1.1" in reply.json["errorMessage"]
        assert await client.rest() == b""
    assert worker.invoked == []


async def test_one_coding_may_be_spelled_in_any_case(serve: Serve) -> None:
    async with raw((await serve()).port) as client:
        head = b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: Chunked\r\n\r\n"
        assert (await client.ask(head + b"1\r\n7\r\n0\r\n\r\n")).json == 7


async def test_pipelined_requests_are_answered_in_order(serve: Serve, worker: FakeWorker) -> None:
    async with raw((await serve()).port) as client:
        client.send(post("/run/slow", b"1") + post("/run/echo", b"2") + get("/healthz") + post("/run/echo", b"3"))
        await worker.started.wait()
        assert worker.invoked == [("slow", b"1")]
        worker.release.set()
        bodies = [(await client.reply()).body for _ in range(4)]
    assert bodies == [b"1", b"2", b'{"status":"ok"}', b"3"]


async def test_garbage_behind_a_request_waits_for_its_answer_and_then_closes(serve: Serve, worker: FakeWorker) -> None:
    async with raw((await serve()).port) as client:
        client.send(post("/run/slow", b"1") + b"\x00\x00garbage\r\n\r\n")
        await worker.started.wait()
        worker.release.set()
        reply = await client.reply()
        assert (reply.body, reply.headers["connection"]) == (b"1", "close")
        assert await client.rest() == b""


@pytest.mark.parametrize("pieces", ["one chunk", "many"])
async def test_a_head_over_its_limit_is_431(serve: Serve, worker: FakeWorker, pieces: str) -> None:
    async with raw((await serve(ConnectionLimits(head_bytes=4096))).port) as client:
        head = get("/run/echo", "a: " + "x" * 3000, "b: " + "x" * 3000)
        if pieces == "one chunk":
            client.send(head)
        else:
            client.send(head[:-4])  # the head never ends
        reply = await client.reply()
        assert (reply.status, reply.json["errorType"]) == (431, "RequestHeaderFieldsTooLarge")
        assert reply.json["requestId"] == "" and "x-amzn-requestid" not in reply.headers
        assert await client.rest() == b""
    assert worker.invoked == []


async def test_a_small_head_with_a_large_body_in_one_chunk_is_no_large_head(serve: Serve) -> None:
    async with raw((await serve(ConnectionLimits(head_bytes=1024))).port) as client:
        body = b"1" * 100_000
        for _ in range(3):
            assert (await client.ask(post("/run/echo", body))).body == body


async def test_a_head_that_trickles_in_is_given_up_on(serve: Serve) -> None:
    server = await serve(ConnectionLimits(head_s=0.3))
    async with raw(server.port) as client:
        client.send(b"POST /run/echo HTTP/1.1\r\nHost: loc")
        reply = await client.reply()
        assert (reply.status, reply.json["errorType"]) == (408, "RequestTimeout")
        assert await client.rest() == b""
    assert server.refused == {"RequestTimeout": 1}


async def test_a_body_that_trickles_in_is_given_up_on(serve: Serve, worker: FakeWorker) -> None:
    async with raw((await serve(ConnectionLimits(body_s=0.3))).port) as client:
        client.send(b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
        assert (await client.reply()).status == 408
        assert await client.rest() == b""
    assert worker.invoked == []


async def test_a_connection_that_says_nothing_is_closed_without_a_word(serve: Serve) -> None:
    async with raw((await serve(ConnectionLimits(head_s=0.2))).port) as client:
        assert await client.rest() == b""


async def test_blank_lines_do_not_keep_a_connection_alive(serve: Serve) -> None:
    async with raw((await serve(ConnectionLimits(head_s=0.3))).port) as client:
        await client.ask(get("/healthz"))
        client.send(b"\r\n")
        assert (await client.reply()).status == 408
        assert await client.rest() == b""


async def test_a_slow_function_is_not_a_slow_request(serve: Serve, worker: FakeWorker) -> None:
    limits = ConnectionLimits(head_s=0.2, body_s=0.2)
    async with raw((await serve(limits)).port) as client:
        client.send(post("/run/slow", b"1"))
        await worker.started.wait()
        asyncio.get_running_loop().call_later(0.5, worker.release.set)
        assert (await client.reply()).body == b"1"


async def test_an_idle_connection_is_closed_after_keep_alive(serve: Serve) -> None:
    async with raw((await serve(keep_alive_s=1)).port) as client:
        await client.ask(get("/healthz"))
        assert await client.rest() == b""


async def test_a_client_that_has_said_all_still_gets_its_answer(serve: Serve, worker: FakeWorker) -> None:
    async with raw((await serve()).port) as client:
        client.send(post("/run/slow", b"1"))
        client.writer.write_eof()
        await worker.started.wait()
        worker.release.set()
        assert (await client.rest()).endswith(b"\r\n\r\n1")


async def test_expect_100_continue_is_answered_before_the_body(serve: Serve) -> None:
    async with raw((await serve()).port) as client:
        client.send(b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert (await client.reply()).status == 100
        assert (await client.ask(b"{}")).body == b"{}"


@pytest.mark.parametrize("upgrade", ["h2c", "websocket"])
async def test_an_upgrade_is_answered_as_the_plain_request_that_it_also_is(serve: Serve, upgrade: str) -> None:
    """Java's HttpClient sends `Upgrade: h2c` with every first request, body and all."""
    headers = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {upgrade}", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
    async with raw((await serve()).port) as client:
        client.send(post("/run/echo", b"[7]", *headers) + post("/run/echo", b"8"))
        assert (await client.reply()).body == b"[7]"
        assert (await client.reply()).body == b"8"
        assert (await client.ask(get("/healthz", *headers))).status == 200
        client.send(CHUNKED + "\r\n".join(headers).encode() + b"\r\n\r\n2\r\n")
        assert (await client.ask(b"[]\r\n0\r\n\r\n")).body == b"[]"
        assert (await client.ask(post("/run/echo", b"1", *headers, "Connection: close"))).headers[
            "connection"
        ] == "close"


async def test_a_connection_too_many_learns_that_when_all_others_are_owed_an_answer(
    serve: Serve, worker: FakeWorker
) -> None:
    port = (await serve(ConnectionLimits(connections=2))).port
    async with raw(port) as first, raw(port) as second:
        for client in (first, second):
            worker.started.clear()
            client.send(post("/run/slow", b"1"))
            await worker.started.wait()
        async with raw(port) as third:
            reply = await third.reply()
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            assert reply.json["errorType"] == "ServiceUnavailableException"
        worker.release.set()
        assert [(await client.reply()).status for client in (first, second)] == [200, 200]


async def test_a_connection_too_many_takes_the_place_of_the_one_that_was_idle_longest(serve: Serve) -> None:
    server = await serve(ConnectionLimits(connections=2))
    async with raw(server.port) as kept, raw(server.port) as slow:
        slow.send(b"GET /healthz HTTP/1.1\r\nHost: loc")
        assert (await kept.ask(get("/healthz"))).status == 200
        async with raw(server.port) as third:
            assert (await third.ask(get("/healthz"))).status == 200
            assert (await slow.reply()).status == 503, "the slow client had to be done in ten seconds, the other in 75"
            assert (await kept.ask(get("/healthz"))).status == 200
            assert server.connections == 2
            async with raw(server.port) as fourth:
                assert (await fourth.ask(get("/healthz"))).status == 200
                assert server.connections == 2


async def test_an_answer_is_one_write(serve: Serve) -> None:
    server = await serve()
    writes: list[int] = []
    async with raw(server.port) as client:
        await client.ask(get("/healthz"))
        (connection,) = server._connections

        class Counted:
            def __init__(self, transport: Transport) -> None:
                self._transport = transport

            def write(self, data: bytes) -> None:
                writes.append(len(data))
                self._transport.write(data)

            def writelines(self, data: tuple[bytes, ...]) -> None:
                writes.append(sum(map(len, data)))
                self._transport.writelines(data)

            def __getattr__(self, name: str) -> object:
                return getattr(self._transport, name)

        connection.transport = Counted(connection.transport)  # type: ignore[assignment]
        await client.ask(post("/run/echo", b"x" * 1000))
        assert len(writes) == 1
        assert (await client.ask(post("/run/echo", b"x" * 1_000_000))).body == b"x" * 1_000_000
        assert len(writes) == 2


async def test_small_answers_do_not_wait_for_acknowledgements(serve: Serve) -> None:
    server = await serve()
    async with raw(server.port) as client:
        await client.ask(get("/healthz"))
        (connection,) = server._connections
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


async def test_a_refused_body_without_end_is_cut_off(serve: Serve) -> None:
    async with raw((await serve(ConnectionLimits(discard_bytes=1 << 20))).port) as client:
        client.send(
            b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n" + b"x" * (4 << 20)
        )
        assert (await client.reply()).status == 413
        assert await client.rest() == b""
