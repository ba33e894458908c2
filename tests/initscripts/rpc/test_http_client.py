"""Kept connections: what may be sent twice, who may use them, and when they end."""

from __future__ import annotations

import asyncio
import errno

import pytest

from sockd_initscripts.region import Region
from sockd_initscripts.rpc import ConnectionPool, Dialer, EndpointPolicy, RpcLimits, RpcTiming
from tests.initscripts.rpc.asking import ask, content, failing
from tests.initscripts.rpc.both_loops import ON_BOTH_LOOPS
from tests.initscripts.rpc.peer import Request, peer

pytestmark = ON_BOTH_LOOPS


async def polite(request: Request) -> None:
    request.answer(request.line.encode())


async def gone_at_the_second(request: Request) -> None:
    """Closes a connection as its second request comes, as a server does whose idle timeout has just passed."""
    if request.number == 1:
        request.answer(b"fine")
    else:
        request.hang_up()


async def test_a_kept_connection_is_used_again(dialer: Dialer, region: Region) -> None:
    async with peer(polite) as server:
        for kind in ("new", "kept", "kept"):
            connection = dialer.connect(server.url)
            timing = RpcTiming()
            await ask(connection, region, "GET /", timing=timing)
            assert timing.connection == kind
            connection.close()
        assert server.connections == 1


async def test_a_get_is_repeated_if_the_kept_connection_has_died(dialer: Dialer, region: Region) -> None:
    async with peer(gone_at_the_second) as server:
        connection = dialer.connect(server.url)
        await ask(connection, region, "GET /1")
        timing = RpcTiming()
        assert content(await ask(connection, region, "GET /2", timing=timing)) == b"fine"
        assert timing.connection == "new"
        assert [request.line for request in server.requests] == [f"GET /{n} HTTP/1.1" for n in (1, 2, 2)]


async def test_a_post_is_not(dialer: Dialer, region: Region) -> None:
    async with peer(gone_at_the_second) as server:
        connection = dialer.connect(server.url)
        await ask(connection, region, "GET /1")
        async with failing("reset", errno.ECONNRESET):
            await ask(connection, region, "POST /2")
        assert len(server.requests) == 2


async def test_it_is_repeated_once(dialer: Dialer, region: Region) -> None:
    async def answer(request: Request) -> None:
        if len(server.requests) == 1:
            request.answer(b"fine")
        else:
            request.hang_up()

    async with peer(answer) as server:
        connection = dialer.connect(server.url)
        await ask(connection, region, "GET /1")
        async with failing("reset", errno.ECONNRESET):
            await ask(connection, region, "GET /2")
        assert len(server.requests) == 3


async def test_a_reply_that_has_begun_is_not_asked_for_again(dialer: Dialer, region: Region) -> None:
    async def answer(request: Request) -> None:
        request.answer(b"fine") if request.number == 1 else request.send(b"HTTP/1.1 200 OK\r\n")
        if request.number == 2:
            request.hang_up()

    async with peer(answer) as server:
        connection = dialer.connect(server.url)
        await ask(connection, region, "GET /1")
        async with failing("reset", errno.ECONNRESET):
            await ask(connection, region, "GET /2")
        assert len(server.requests) == 2


async def test_what_was_dialled_ahead_and_not_used_is_kept_for_others(
    dialer: Dialer, region: Region, pool: ConnectionPool
) -> None:
    async with peer(polite) as server:
        first, second = dialer.connect(server.url), dialer.connect(server.url)
        await ask(first, region, "GET /")
        second.close()  # cancelled, or kept if it was quick
        await ask(dialer.connect(server.url), region, "GET /")
        assert server.connections <= 2
        assert pool.idle_count <= 2


async def test_functions_share_no_connections_to_what_they_word_themselves(
    pool: ConnectionPool, region: Region
) -> None:
    async with peer(polite) as server:
        for env in ({"A": "1"}, {"A": "2"}, {"A": "1"}):
            await ask(Dialer(env, EndpointPolicy(), pool).connect(server.url), region, "GET /")
        assert server.connections == 2


async def test_a_kept_connection_is_no_way_around_a_policy(pool: ConnectionPool, region: Region) -> None:
    async with peer(polite) as server:
        url = f"http://localhost:{server.port}"
        await ask(Dialer({}, EndpointPolicy(), pool).connect(url), region, "GET /")
        assert pool.idle_count == 1
        strict = Dialer({}, EndpointPolicy(["localhost"], denied_endpoints=["127.0.0.0/8", "::1"]), pool).connect(url)
        async with failing("denied", errno.EACCES):
            await ask(strict, region, "GET /")


class TestBounds:
    """How many are kept, and how long."""

    @pytest.mark.parametrize("limits", [RpcLimits(idle_per_origin=2, idle=3)], ids=[""])
    async def test_the_oldest_goes_when_there_are_too_many(
        self, dialer: Dialer, region: Region, pool: ConnectionPool
    ) -> None:
        async with peer(polite) as one, peer(polite) as two:
            for server in (one, two):
                connection = dialer.connect(server.url)
                await asyncio.gather(*(ask(connection, region, "GET /") for _ in range(4)))
            assert pool.idle_count == 3

    @pytest.mark.parametrize("limits", [RpcLimits(idle_s=0.1)], ids=[""])
    async def test_no_one_keeps_them_for_ever(self, dialer: Dialer, region: Region, pool: ConnectionPool) -> None:
        async with peer(polite) as server:
            await ask(dialer.connect(server.url), region, "GET /")
            assert pool.idle_count == 1
            await server.ended.get()
            assert pool.idle_count == pool.open_count == 0


async def test_closing_the_pool_ends_calls_under_way(pool: ConnectionPool, dialer: Dialer, region: Region) -> None:
    asked = asyncio.Event()

    async def answer(request: Request) -> None:
        asked.set()

    async with peer(answer) as server:
        call = asyncio.create_task(ask(dialer.connect(server.url), region, "GET /"))
        await asked.wait()
        await pool.aclose()
        async with failing("reset", errno.ECONNRESET):
            await call
