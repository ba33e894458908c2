"""Answers that come piece by piece: how they are framed, what of their head is ours, and what their client sees of an error."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from sockd.base.config import HttpConfig
from sockd.http.front import Front
from sockd.http.server.listening.sockets import bind_tcp
from sockd.http.server.server import HttpServer
from tests.http.fake_worker import FakeWorker
from tests.http.raw import get, post, raw
from tests.http.worker_answers import FLOOD

pytestmark = pytest.mark.anyio


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
async def server(worker: FakeWorker) -> AsyncIterator[HttpServer]:
    server = HttpServer(Front(worker, HttpConfig()), bind_tcp("127.0.0.1:0"))
    await server.start()
    yield server
    await server.aclose(0)


def pieces(name: str, *parts: str) -> bytes:
    return post(f"/run/{name}", json.dumps(parts).encode())


async def test_pieces_are_chunks_and_the_connection_goes_on(server: HttpServer) -> None:
    async with raw(server.port) as client:
        client.send(pieces("streams", "one", "", "two") + post("/run/echo", b"3"))
        reply = await client.reply()
        assert (reply.status, reply.body) == (200, b"onetwo")
        assert (reply.headers["content-type"], reply.headers["set-cookie"]) == ("text/plain", "b=2")
        assert reply.headers["x-sockd-sandbox"] == "sandbox-7" and reply.headers["x-sockd-cold"] == "1"
        assert len(reply.headers["x-amzn-requestid"]) == 36
        assert "init;dur=3.000" in reply.headers["server-timing"] and "exec" not in reply.headers["server-timing"]
        assert (await client.reply()).body == b"3"


async def test_a_piece_is_there_before_the_next_is_made(server: HttpServer, worker: FakeWorker) -> None:
    async with raw(server.port) as client:
        client.send(pieces("streams", "first", "wait", "last"))
        assert (await client.until(b"first\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        worker.release.set()
        assert await client.until(b"\r\n0\r\n\r\n") == b"4\r\nlast\r\n0\r\n\r\n"


async def test_a_head_does_not_wait_for_its_body(server: HttpServer, worker: FakeWorker) -> None:
    async with raw(server.port) as client:
        client.send(pieces("streams", "wait", "late"))
        assert b"transfer-encoding: chunked" in await client.until(b"\r\n\r\n")
        worker.release.set()
        assert b"late" in await client.until(b"0\r\n\r\n")


async def test_nothing_at_all_is_an_empty_answer(server: HttpServer) -> None:
    async with raw(server.port) as client:
        client.send(pieces("streams"))
        assert b"content-length: 0\r\n" in await client.until(b"\r\n\r\n")


@pytest.mark.parametrize(("given", "seen"), [(["hello"], b"hello"), (["hel", "lo and more"], b"hello")])
async def test_a_promised_length_is_kept(server: HttpServer, given: list[str], seen: bytes) -> None:
    async with raw(server.port) as client:
        client.send(pieces("promises", *given) + post("/run/echo", b"3"))
        reply = await client.reply()
        assert (reply.headers["content-length"], reply.body) == ("5", seen)
        assert (await client.reply()).body == b"3"


async def test_less_than_promised_is_cut(server: HttpServer) -> None:
    async with raw(server.port) as client:
        client.send(pieces("promises", "hel") + post("/run/echo", b"3"))
        assert (await client.rest()).endswith(b"\r\n\r\nhel")


async def test_headers_of_the_connection_are_not_the_functions(server: HttpServer) -> None:
    async with raw(server.port) as client:
        client.send(pieces("forges", "x"))
        head = (await client.until(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 299 \r\n")
        assert head.count(b"transfer-encoding") == head.count(b"x-sockd-cold") == head.count(b"date: ") == 1
        assert b"gzip" not in head and b"connection" not in head and b"x-sockd-cold: 1" in head
        assert b"mine" not in head


async def test_what_has_no_body_has_none_of_its_marks(server: HttpServer) -> None:
    async with raw(server.port) as client:
        client.send(pieces("creates", "abc") + post("/run/echo", b"3"))
        head = await client.until(b"\r\n\r\n")
        assert b"204 No Content" in head and b"content-length" not in head and b"transfer-encoding" not in head
        assert (await client.reply()).body == b"3"


async def test_http_1_0_reads_until_the_end(server: HttpServer) -> None:
    async with raw(server.port) as client:
        body = b'["one","two"]'
        client.send(b"POST /run/streams HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 13\r\n\r\n" + body)
        reply = await client.rest()
        assert b"connection: close\r\n" in reply and b"chunked" not in reply and reply.endswith(b"\r\n\r\nonetwo")


async def test_an_error_after_the_head_cuts_the_answer(server: HttpServer) -> None:
    async with raw(server.port) as client:
        client.send(pieces("breaks", "half") + post("/run/echo", b"3"))
        reply = await client.rest()
        assert reply.endswith(b"\r\n4\r\nhalf\r\n") and b"errorType" not in reply


async def test_a_function_waits_for_a_client_that_reads_slowly(server: HttpServer, worker: FakeWorker) -> None:
    async with raw(server.port) as client, raw(server.port) as other:
        client.pause()
        client.send(pieces("streams", "flood"))
        await worker.started.wait()
        for _ in range(100):
            await other.ask(get("/healthz"))
        assert worker.sent < 12_000_000  # what the kernel's two buffers take, and little else
        client.go_on()
        assert len((await client.reply()).body) == 400 * len(FLOOD) == worker.sent


@pytest.mark.parametrize("half", [True, False])
async def test_a_client_that_hangs_up_in_the_middle_is_noticed(
    server: HttpServer, worker: FakeWorker, *, half: bool
) -> None:
    async with raw(server.port) as client:
        client.send(pieces("streams", "first", "wait", "dropped"))
        await client.until(b"first")
        if half:
            client.writer.write_eof()
        else:
            client.writer.transport.abort()
        await worker.cancelled.wait()
        worker.release.set()
        await worker.finished.wait()


async def test_a_client_that_has_said_all_before_is_still_answered(server: HttpServer) -> None:
    async with raw(server.port) as client:
        client.send(pieces("late", "first", "last"))
        client.writer.write_eof()
        assert (await client.rest()).endswith(b"last\r\n0\r\n\r\n")
