"""What one turn of the loop takes, and who is next when more has come than that."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncIterator
from typing import cast

import pytest

from sockd.http.front import Front
from sockd.http.wire.connection import Connection
from sockd.http.wire.limits import ConnectionLimits
from sockd.http.wire.server import LEAST_NEW, HttpServer
from sockd.http.wire.sockets import bind_tcp
from sockd.http.wire.turns import UNITS
from sockd.plain.config import HttpConfig
from sockd.plain.invoke_request import InvokeRequest
from sockd.plain.telemetry import Invocation
from tests.http.fake_worker import FakeWorker
from tests.http.raw import post, raw

pytestmark = pytest.mark.anyio
CROWD = 200


class Noting(FakeWorker):
    """Knows in which order it was asked for what."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    async def invoke(self, request: InvokeRequest) -> Invocation:
        self.order.append(request.payload.decode()[:20])
        return await super().invoke(request)


@pytest.fixture
def worker() -> Noting:
    return Noting()


@pytest.fixture
async def server(worker: Noting) -> AsyncIterator[HttpServer]:
    server = HttpServer(Front(worker, HttpConfig()), bind_tcp("127.0.0.1:0"), limits=ConnectionLimits())
    await server.start()
    yield server
    await server.aclose(0)


async def connected(server: HttpServer, count: int) -> list[socket.socket]:
    """That many connections which the server has taken."""
    loop = asyncio.get_running_loop()
    clients = [socket.socket() for _ in range(count)]
    for client in clients:
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", server.port))
    while server.connections < count:
        await asyncio.sleep(0)
    return clients


async def test_who_asks_for_something_else_does_not_wait_for_a_crowd(server: HttpServer, worker: Noting) -> None:
    async with raw(server.port) as neighbour:
        await neighbour.ask(post("/run/echo", b'"before"'))
        clients = await connected(server, CROWD)
        try:
            for number, client in enumerate(clients):
                client.send(post("/run/boom", b"%d" % number))
            neighbour.send(post("/run/echo", b'"neighbour"'))
            assert (await neighbour.reply()).body == b'"neighbour"'
            assert worker.order.index('"neighbour"') <= 4 * UNITS
            while len(worker.order) < CROWD + 2:
                await asyncio.sleep(0)
            crowd = [int(body) for body in worker.order if body.isdigit()]
            assert sorted(crowd) == list(range(CROWD))
        finally:
            for client in clients:
                client.close()


async def test_megabytes_of_one_are_read_in_many_turns(server: HttpServer, worker: Noting) -> None:
    body = b'"%s"' % (b"x" * 5_000_000)
    async with raw(server.port) as large, raw(server.port) as small:
        large.send(post("/run/echo", body))
        for number in range(10):
            assert (await small.ask(post("/run/echo", b"%d" % number))).body == b"%d" % number
        assert (await large.reply()).body == body
    assert worker.order.index("9") < worker.order.index('"' + "x" * 19)


async def test_what_waits_for_its_turn_is_not_lost_when_its_client_has_said_all(server: HttpServer) -> None:
    clients = await connected(server, CROWD)
    loop = asyncio.get_running_loop()
    try:
        for number, client in enumerate(clients):
            client.send(post("/run/echo", b"%d" % number))
            client.shutdown(socket.SHUT_WR)
        for number, client in enumerate(clients):
            answer = b""
            while data := await loop.sock_recv(client, 4096):
                answer += data
            assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"\r\n\r\n%d" % number)
    finally:
        for client in clients:
            client.close()


async def test_of_those_that_ask_for_nothing_there_are_only_so_many(worker: Noting) -> None:
    server = HttpServer(Front(worker, HttpConfig()), bind_tcp("127.0.0.1:0"), limits=ConnectionLimits(connections=400))
    await server.start()
    loop = asyncio.get_running_loop()
    clients = []
    try:
        async with raw(server.port) as kept:
            await kept.ask(post("/run/echo", b"1"))
            for _ in range(150):
                clients.append(socket.socket())
                clients[-1].setblocking(False)
                await loop.sock_connect(clients[-1], ("127.0.0.1", server.port))
            assert await loop.sock_recv(clients[0], 1) == b""
            assert (await kept.ask(post("/run/echo", b"2"))).body == b"2"
        assert server.connections <= 101
    finally:
        for client in clients:
            client.close()
        await server.aclose(0)


class Silent:
    """A connection that has asked for nothing."""

    owed_nothing = True
    deadline_s = stalled_s = math.inf
    ended = False

    def make_way(self) -> None:
        self.ended = True


async def test_once_there_were_too_many_of_them_there_are_few_until_the_next_second(worker: Noting) -> None:
    server = HttpServer(Front(worker, HttpConfig()), bind_tcp("127.0.0.1:0"), limits=ConnectionLimits(connections=4000))
    usual = [Silent() for _ in range(1000)]
    flood = [Silent() for _ in range(2000)]
    try:
        for each in usual:
            assert server.admit(cast(Connection, each))
        assert server.connections == len(usual)
        for each in flood:
            assert server.admit(cast(Connection, each))
        assert server.connections <= LEAST_NEW
        left = [each for each in usual + flood if not each.ended]
        assert left == flood[-len(left) :]
        server._tick()
        for each in usual[:500]:
            server.admit(cast(Connection, each))
        assert server.connections >= 500
    finally:
        await server.aclose(0)
