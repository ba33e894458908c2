"""What one turn of the loop takes, and who is next when more has come than that."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncIterator
from typing import cast

import pytest

from sockd.base.config import HttpConfig
from sockd.base.invoke_request import InvokeRequest
from sockd.base.telemetry import Invocation
from sockd.http.front import Front
from sockd.http.server.connection import Connection
from sockd.http.server.limits import ConnectionLimits
from sockd.http.server.listening.sockets import bind_tcp
from sockd.http.server.listening.turns import CROWD, OVERTAKEN, OVERTAKEN_BY_FEW, UNITS, Turns
from sockd.http.server.server import LEAST_NEW, HttpServer
from tests.http.fake_worker import FakeCalls, FakeWorker
from tests.http.raw import post, raw

pytestmark = pytest.mark.anyio
CLIENTS = 200


class NotingCalls(FakeCalls):
    """Calls that note their order."""

    async def invoke(self, request: InvokeRequest) -> Invocation:
        assert isinstance(self._worker, Noting)
        self._worker.order.append(request.payload.decode()[:20])
        return await super().invoke(request)


class Noting(FakeWorker):
    """A worker that knows in which order it was asked for what."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []
        self.calls = NotingCalls(self)


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
        clients = await connected(server, CLIENTS)
        try:
            for number, client in enumerate(clients):
                client.send(post("/run/boom", b"%d" % number))
            neighbour.send(post("/run/echo", b'"neighbour"'))
            assert (await neighbour.reply()).body == b'"neighbour"'
            assert worker.order.index('"neighbour"') <= 4 * UNITS
            while len(worker.order) < CLIENTS + 2:
                await asyncio.sleep(0)
            crowd = [int(body) for body in worker.order if body.isdigit()]
            assert sorted(crowd) == list(range(CLIENTS))
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
    clients = await connected(server, CLIENTS)
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


class Asking:
    """Clients of one target that ask again as soon as they have had their turn."""

    def __init__(self, turns: Turns, place: int, order: list[int], rounds: int) -> None:
        self._turns, self._place, self._order, self._rounds = turns, place, order, rounds

    def place(self) -> int:
        return self._place

    def go_on(self) -> int:
        self._order.append(self._place)
        self._rounds -= 1
        if self._rounds > 0:
            self._turns.wait(self)
        return UNITS


async def order_of(popular: int, others: int) -> list[int]:
    """The targets that had the turns, where so many wait for target 0 and one client of each of 4 others asks again and again."""
    turns, order = Turns(), list[int]()
    for _ in range(popular):
        turns.wait(Asking(turns, 0, order, 1))
    for place in range(1, 5):
        turns.wait(Asking(turns, place, order, others))
    while len(order) < popular + 4 * others:
        await asyncio.sleep(0)
    return order


async def test_a_request_is_overtaken_by_a_share_of_those_before_it() -> None:
    popular = 60
    order = await order_of(popular, 30)
    turns = [turn for turn, place in enumerate(order) if place == 0]
    for ahead, turn in enumerate(turns):
        assert turn <= ahead * (1 + OVERTAKEN) + OVERTAKEN_BY_FEW + 4
    assert turns[-1] >= popular * (1 + OVERTAKEN) - 4, "others pass as far as they may"


async def test_a_crowd_is_overtaken_without_end() -> None:
    order = await order_of(2 * CROWD, 50)
    behind = order[CROWD + CROWD // 2 :][:CROWD]
    assert behind.count(0) <= len(behind) / 4, "each of five targets has its turn"


async def test_what_has_gone_is_not_kept_by_the_queues() -> None:
    turns, order = Turns(), list[int]()
    turns.wait(Asking(turns, 0, order, 5))
    while len(order) < 5:
        await asyncio.sleep(0)
    assert not turns._in_order and not turns._queues
