"""Peers that send more than they let be answered, and the order of what they get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sockd.base.config import HttpConfig
from sockd.http.front import Front
from sockd.http.server.limits import ConnectionLimits
from sockd.http.server.listening.sockets import bind_tcp
from sockd.http.server.server import HttpServer
from tests.http.fake_worker import FakeWorker
from tests.http.raw import get, post, raw

pytestmark = pytest.mark.anyio
CHUNKED = b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
def limits() -> ConnectionLimits:
    return ConnectionLimits(head_bytes=1024)


@pytest.fixture
async def server(worker: FakeWorker, limits: ConnectionLimits) -> AsyncIterator[HttpServer]:
    server = HttpServer(Front(worker, HttpConfig()), bind_tcp("127.0.0.1:0"), limits=limits)
    await server.start()
    yield server
    await server.aclose(0)


async def test_requests_behind_a_running_one_are_left_in_the_clients_own_buffer(
    server: HttpServer, worker: FakeWorker
) -> None:
    body, count = b"x" * 1_000_000, 40
    async with raw(server.port) as client, raw(server.port) as other:
        client.send(post("/run/slow", b"1") + post("/run/echo", body) * count)
        await worker.started.wait()
        for _ in range(200):
            await other.ask(get("/healthz"))
        # What the kernel's two buffers hold is gone from here (tcp_wmem, tcp_rmem: 4 and 6 MB), and little else.
        assert client.writer.transport.get_write_buffer_size() > 20_000_000
        worker.release.set()
        assert (await client.reply()).body == b"1"
        for _ in range(count):
            assert (await client.reply()).body == body


async def test_a_peer_that_does_not_read_is_not_worked_for(server: HttpServer, worker: FakeWorker) -> None:
    body, count = b"x" * 1_000_000, 40
    async with raw(server.port) as client, raw(server.port) as other:
        client.send(post("/run/echo", body) * count)
        await worker.finished.wait()
        for _ in range(200):
            await other.ask(get("/healthz"))
        assert len(worker.invoked) < 20
        for _ in range(count):
            assert (await client.reply()).body == body
    assert len(worker.invoked) == count


@pytest.mark.parametrize("limits", [ConnectionLimits(head_s=1, body_s=1)])
async def test_a_body_that_is_not_read_yet_is_not_late(server: HttpServer, worker: FakeWorker) -> None:
    async with raw(server.port) as client, raw(server.port) as other:
        request = post("/run/echo", b"22")
        client.send(post("/run/slow", b"1") + request[:-1])
        await worker.started.wait()
        assert await other.rest() == b""  # closed for saying nothing in the same time
        worker.release.set()
        assert (await client.reply()).body == b"1"
        assert (await client.ask(request[-1:])).body == b"22"


async def test_many_requests_and_a_part_of_one_in_a_chunk_are_no_large_head(server: HttpServer) -> None:
    request = post("/run/echo", b"1")
    async with raw(server.port) as client:
        client.send(request * 100 + request[:10])
        assert [(await client.reply()).body for _ in range(100)] == [b"1"] * 100
        assert (await client.ask(request[10:])).body == b"1"


async def test_requests_behind_one_that_closes_are_not_run(server: HttpServer, worker: FakeWorker) -> None:
    async with raw(server.port) as client:
        client.send(post("/run/echo", b"1", "Connection: close") + post("/run/echo", b"2"))
        assert (await client.rest()).endswith(b"connection: close\r\ncontent-length: 1\r\n\r\n1")
    assert worker.invoked == [("echo", b"1")]


async def test_an_end_of_file_in_a_request_loses_no_answer_before_it(server: HttpServer, worker: FakeWorker) -> None:
    async with raw(server.port) as client:
        client.send(post("/run/slow", b"1") + post("/run/echo", b"2")[:-1])
        client.writer.write_eof()
        await worker.started.wait()
        worker.release.set()
        assert (await client.rest()).endswith(b"\r\n\r\n1")
    assert worker.invoked == [("slow", b"1")]


async def test_a_drain_twice_over_loses_no_answer_either(server: HttpServer, worker: FakeWorker) -> None:
    async with raw(server.port) as client:
        client.send(post("/run/slow", b"1") + post("/run/echo", b"2")[:-1])
        client.writer.write_eof()
        await worker.started.wait()
        closing = asyncio.create_task(server.aclose(10))
        asyncio.get_running_loop().call_later(0.1, worker.release.set)
        assert (await client.rest()).endswith(b"\r\n\r\n1")
        await closing


async def test_trailers_are_no_headers_of_the_next_request(server: HttpServer) -> None:
    async with raw(server.port) as client:
        client.send(CHUNKED + b"1\r\n7\r\n0\r\nHost: evil.example\r\n\r\n" + post("/run/echo", b"8"))
        assert (await client.reply()).body == b"7"
        assert (await client.reply()).body == b"8"


async def test_a_target_may_name_scheme_and_host_as_for_a_proxy(server: HttpServer, worker: FakeWorker) -> None:
    async with raw(server.port) as client:
        assert (await client.ask(post("http://localhost/run/echo?a=b", b"1"))).body == b"1"
        assert (await client.ask(get("http://localhost/healthz"))).status == 200


async def test_an_http_1_0_request_is_the_last_on_its_connection(server: HttpServer) -> None:
    async with raw(server.port) as client:
        reply = await client.ask(b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert await client.rest() == b""
