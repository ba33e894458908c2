"""Clients of several sources, of which one wants all of the front's memory or all of its places."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from typing import cast

import pytest

from sockd.base.config import HttpConfig
from sockd.http.front import Front, FrontExchange
from sockd.http.server import outgoing
from sockd.http.server.bounds.buffers import COPIES, BufferBudget
from sockd.http.server.bounds.sources import source_of
from sockd.http.server.exchange import Exchange
from sockd.http.server.limits import ConnectionLimits
from sockd.http.server.listening.sockets import bind_tcp
from sockd.http.server.messages.body import Body
from sockd.http.server.server import HttpServer
from sockd.http.server.transport import Transport
from tests.http.fake_worker import FakeWorker
from tests.http.raw import Raw, get, post, raw

pytestmark = pytest.mark.anyio
KB = 1024
BODY = b"x" * (512 * KB)
UNFINISHED = b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{"
sources: dict[int, str] = {}
"""The sources of clients, by their ports; of all others it is "us"."""


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients of a test have one uid, so names distinguish them."""
    sources.clear()
    monkeypatch.setattr(
        outgoing, "source_of", lambda transport: sources.get(transport.get_extra_info("peername")[1], "us")
    )


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
def limits() -> ConnectionLimits:
    return ConnectionLimits()


@pytest.fixture
async def server(worker: FakeWorker, limits: ConnectionLimits) -> AsyncIterator[HttpServer]:
    budget = BufferBudget(COPIES * 2 * len(BODY))
    server = HttpServer(Front(worker, HttpConfig()), bind_tcp("127.0.0.1:0"), limits=limits, buffers=budget)
    await server.start()
    yield server
    await server.aclose(0)
    assert (server.buffers.used, server.buffers.waiting) == (0, 0)
    assert server.waits.largest() == ("", 0)


def call_it(client: Raw, source: str) -> None:
    sources[client.writer.get_extra_info("sockname")[1]] = source


async def until_used(server: HttpServer, least: int) -> None:
    async with asyncio.timeout(5):
        while server.buffers.used < least:
            await asyncio.sleep(0)


async def until_read(server: HttpServer, size: int) -> None:
    """Until so much has been read of all bodies that are not whole."""
    async with asyncio.timeout(5):
        while sum(bytes_of(each.reading) for each in server._connections) < size:
            await asyncio.sleep(0)


def bytes_of(exchange: Exchange | None) -> int:
    """Return the bytes of a request's body that are in memory."""
    body = exchange.body if isinstance(exchange, FrontExchange) else b""
    return body.size if isinstance(body, Body) else len(body)


async def test_a_small_body_asks_for_no_room_and_no_one_where_it_comes_from(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(outgoing, "source_of")
    async with raw(server.port) as client:
        request = post("/run/echo", b"1" * 30_000)
        assert (await client.ask(request)).status == 200
        client.send(request[:-20_000])
        await (await second(server)).ask(get("/healthz"))
        assert (await client.ask(request[-20_000:])).status == 200
    assert server.buffers.used == 0


async def second(server: HttpServer) -> Raw:
    return Raw(*await asyncio.open_connection("127.0.0.1", server.port))


async def test_the_longest_idle_body_of_the_largest_source_makes_room_for_another_source(server: HttpServer) -> None:
    async with raw(server.port) as idle, raw(server.port) as busy, raw(server.port) as client:
        for number, each in enumerate((idle, busy), 1):
            each.send(post("/run/echo", BODY)[:-1])
            await until_read(server, number * (len(BODY) - 1))
        call_it(client, "other")
        assert (await client.ask(post("/run/echo", BODY))).body == BODY
        refused = await idle.reply()
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "http.buffer_mb" in refused.json["errorMessage"]
        # It is a refusal as any other: the connection is good for the next request, once the body is over.
        assert (await idle.ask(b"x" + post("/run/echo", b"2"))).body == b"2"
        assert (await busy.ask(b"x")).body == BODY
    assert server.buffers.dropped == 1


async def test_a_body_that_waits_for_its_turn_makes_room_too(server: HttpServer, worker: FakeWorker) -> None:
    async with raw(server.port) as waits, raw(server.port) as more, raw(server.port) as client:
        for count, each in enumerate((waits, more), 1):
            each.send(post("/run/slow", BODY))
            async with asyncio.timeout(5):
                while len(worker.invoked) < count:
                    await asyncio.sleep(0)
        call_it(client, "other")
        assert (await client.ask(post("/run/echo", BODY))).body == BODY
        assert (await waits.reply()).status == 503
        worker.release.set()
        assert (await more.reply()).body == BODY


async def test_bodies_of_one_source_wait_unread_and_none_is_lost_while_others_end(server: HttpServer) -> None:
    async def one() -> int:
        async with raw(server.port) as client:
            return (await client.ask(post("/run/echo", BODY))).status

    assert await asyncio.gather(*(one() for _ in range(20))) == [200] * 20


@pytest.mark.parametrize("limits", [ConnectionLimits(body_s=1)])
async def test_a_body_for_which_no_room_comes_gets_a_503_in_the_end(server: HttpServer, worker: FakeWorker) -> None:
    async with raw(server.port) as first, raw(server.port) as second, raw(server.port) as third:
        for each in (first, second):
            each.send(post("/run/slow", BODY))
        async with asyncio.timeout(5):
            while len(worker.invoked) < 2:
                await asyncio.sleep(0)
        refused = await third.ask(post("/run/echo", BODY))
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        worker.release.set()
        assert (await first.reply()).body == (await second.reply()).body == BODY


async def test_a_body_that_never_fits_is_refused_at_once(server: HttpServer) -> None:
    async with raw(server.port) as client:
        refused = await client.ask(post("/run/echo", BODY * 3))
        assert (refused.status, "http.buffer_mb" in refused.json["errorMessage"]) == (413, True)


async def test_a_client_that_asks_before_it_sends_is_asked_for_its_body_when_there_is_room(
    server: HttpServer, worker: FakeWorker
) -> None:
    head, body = post("/run/echo", BODY, "Expect: 100-continue").split(b"\r\n\r\n")
    async with raw(server.port) as first, raw(server.port) as second, raw(server.port) as third:
        for each in (first, second):
            each.send(post("/run/slow", BODY))
        async with asyncio.timeout(5):
            while len(worker.invoked) < 2:
                await asyncio.sleep(0)
        third.send(head + b"\r\n\r\n")
        async with asyncio.timeout(5):
            while not server.buffers.waiting:
                await asyncio.sleep(0)
        worker.release.set()
        assert await third.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert (await third.ask(body)).body == BODY


async def test_a_long_pipeline_is_counted_and_refused_beyond_the_budget(server: HttpServer, worker: FakeWorker) -> None:
    server.buffers.total = 1 << 20
    request = b"GET /run/echo HTTP/1.1\r\nHost:a\r\n\r\n"
    async with raw(server.port) as client:
        client.send(post("/run/slow", b"1"))
        await worker.started.wait()
        client.send(request * 1900)
        await until_used(server, 1)
        assert server.buffers.used <= server.buffers.total
        worker.release.set()
        assert (await client.reply()).body == b"1"


async def test_more_headers_than_anybody_sends_are_refused(server: HttpServer) -> None:
    async with raw(server.port) as client:
        reply = await client.ask(get("/healthz", *(f"a{number}:" for number in range(200))))
    assert reply.status == 431


@pytest.mark.parametrize("limits", [ConnectionLimits(stall_s=0.5)])
async def test_an_answer_that_no_one_takes_is_cut(server: HttpServer, worker: FakeWorker) -> None:
    server.buffers.total = 100 << 20
    async with raw(server.port) as client:
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.pause()
        client.send(post("/run/echo", b"x" * (6 << 20)))
        await worker.finished.wait()
        async with asyncio.timeout(5):
            while server.connections:
                await asyncio.sleep(0)


async def test_an_answer_that_is_not_taken_is_counted_as_long_as_any_of_it_is_there(
    server: HttpServer, worker: FakeWorker
) -> None:
    server.buffers.total = 100 << 20
    body = b"x" * (6 << 20)
    async with raw(server.port) as client:
        client.pause()
        client.send(post("/run/echo", body))
        await worker.finished.wait()
        async with asyncio.timeout(5):
            while server.running:
                await asyncio.sleep(0)
        assert server.buffers.used == len(body)
        client.go_on()
        assert (await client.reply()).body == body
    assert server.buffers.used == 0


# -- places


@pytest.fixture
async def crowded(server: HttpServer) -> AsyncIterator[list[Raw]]:
    """As many unfinished bodies of one source as there are places."""
    clients = []
    for _ in range(server.limits.connections):
        clients.append(await second(server))
        clients[-1].send(UNFINISHED)
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        while sum(each.waits_for_its_peer for each in server._connections) < len(clients):
            await asyncio.sleep(0)
    yield clients
    for client in clients:
        client.writer.transport.abort()


@pytest.mark.parametrize("limits", [ConnectionLimits(connections=80)])
async def test_the_source_with_most_places_loses_its_oldest_idle_body_to_others(
    server: HttpServer, crowded: list[Raw]
) -> None:
    crowded[0].send(b"x")  # the oldest connection, but not idle any more
    async with asyncio.timeout(5):
        while next(iter(server.waits._unknown)).transport.get_extra_info("peername") == (
            crowded[0].writer.get_extra_info("sockname")
        ):
            await asyncio.sleep(0)
    newcomer = socket.create_connection(("127.0.0.1", server.port))
    sources[newcomer.getsockname()[1]] = "other"
    client = Raw(*await asyncio.open_connection(sock=newcomer))
    assert (await client.ask(post("/run/echo", b"1"))).body == b"1"
    assert (await crowded[1].reply()).status == 503
    client.writer.transport.abort()


@pytest.mark.parametrize("limits", [ConnectionLimits(connections=80)])
async def test_a_source_that_has_all_places_is_refused_one_more_and_others_keep_theirs(
    server: HttpServer, crowded: list[Raw]
) -> None:
    newcomer = socket.create_connection(("127.0.0.1", server.port))
    sources[newcomer.getsockname()[1]] = "other"
    idle = Raw(*await asyncio.open_connection(sock=newcomer))
    assert (await idle.ask(post("/run/echo", b"1"))).status == 200
    for _ in range(10):
        async with raw(server.port) as more:
            assert (await more.reply()).status == 503
    assert (await idle.ask(post("/run/echo", b"2"))).body == b"2"
    idle.writer.transport.abort()


# -- sources


class Peer:
    """A transport, as far as its two addresses."""

    def __init__(self, theirs: object, ours: object) -> None:
        self._addresses = {"peername": theirs, "sockname": ours}

    def get_extra_info(self, name: str) -> object:
        return self._addresses.get(name)


def source(theirs: object, ours: object = ("2001:db8::1", 5000, 0, 0)) -> str:
    return source_of(cast(Transport, Peer(theirs, ours)))


async def test_a_client_of_this_machine_is_its_uid(server: HttpServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        assert source(client.getsockname(), client.getpeername()) == f"uid {os.getuid()}"


@pytest.mark.parametrize(
    ("theirs", "name"),
    [
        (("192.0.2.7", 1234), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 1, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2::9", 2, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 1, 0, 3), "fe80::/64"),
        (("::ffff:192.0.2.7", 1, 0, 0), "::ffff:192.0.2.7"),
        (("127.0.0.1", 1), "127.0.0.1"),
        ("", "unknown"),
        (None, "unknown"),
    ],
)
def test_other_clients_are_their_address_or_a_network_of_one_customer(theirs: object, name: str) -> None:
    assert source(theirs) == name
