"""Kept connections on which another thread than the loop's begins: what is written when, and what may happen in between."""

from __future__ import annotations

import asyncio
import errno
import gc
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sockd_initscripts.engine.rpcs import Rpc
from sockd_initscripts.region import Region
from sockd_initscripts.rpc import Connection, ConnectionPool, Dialer, RpcFailed, RpcTiming
from tests.initscripts.rpc.asking import ask, content, failing
from tests.initscripts.rpc.both_loops import ON_BOTH_LOOPS

pytestmark = ON_BOTH_LOOPS

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
PATIENCE_S = 60.0


class Server:
    """Accepts and answers in the test's own time, while the loop stands still or goes on."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.accepted: list[socket.socket] = []

    async def accept(self) -> socket.socket:
        accepted, _ = await asyncio.get_running_loop().sock_accept(self.listener)
        self.accepted.append(accepted)
        return accepted

    async def answer(self, accepted: socket.socket, data: bytes = OK) -> bytes:
        request = await asyncio.get_running_loop().sock_recv(accepted, 65536)
        await asyncio.get_running_loop().sock_sendall(accepted, data)
        return request


@contextmanager
def listening() -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        server = Server(listener)
        yield server
        for accepted in server.accepted:
            accepted.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with listening() as made:
        yield made


@pytest.fixture
async def kept(server: Server, dialer: Dialer, region: Region) -> socket.socket:
    """The server's end of a connection that is kept now."""
    first = dialer.connect(server.url)
    asked = asyncio.ensure_future(ask(first, region, "GET /first"))
    accepted = await server.accept()
    await server.answer(accepted)
    await asked
    first.close()
    return accepted


def rpc_on(connection: Connection, method: str, body: bytes = b"") -> Rpc:
    return Rpc(1, connection, method, body)


def begin(rpc: Rpc, region: Region) -> None:
    """In another thread, while the loop stands still."""
    thread = threading.Thread(target=rpc.begin, args=(region,))
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def is_readable(sock: socket.socket) -> bool:
    return bool(select.select([sock], [], [], PATIENCE_S)[0])


async def test_the_request_is_written_while_the_loop_stands_still(
    server: Server, dialer: Dialer, region: Region, kept: socket.socket
) -> None:
    connection = dialer.connect(server.url)
    assert connection.is_reserved
    rpc = rpc_on(connection, "GET /")
    begin(rpc, region)
    assert not connection.is_reserved
    assert is_readable(kept)
    assert (await server.answer(kept)).startswith(b"GET / HTTP/1.1\r\n")
    assert content(await rpc.call(region)) == b"ok"
    assert rpc.timing.connection == "kept"
    assert 0 < rpc.timing.sent_ns <= rpc.timing.first_byte_ns <= rpc.timing.done_ns


async def test_a_reply_that_overtakes_the_call_is_its_reply(
    server: Server, dialer: Dialer, region: Region, pool: ConnectionPool, kept: socket.socket
) -> None:
    rpc = rpc_on(dialer.connect(server.url), "GET /")
    begin(rpc, region)
    await server.answer(kept)
    while not pool.idle_count:  # then it is whole
        await asyncio.sleep(0)
    assert content(await rpc.call(region)) == b"ok"


async def test_a_reserved_connection_is_no_one_elses(
    server: Server, dialer: Dialer, pool: ConnectionPool, kept: socket.socket
) -> None:
    first, second = dialer.connect(server.url), dialer.connect(server.url)
    assert first.is_reserved and not second.is_reserved
    assert pool.idle_count == 0
    second.close()
    first.close()
    assert pool.idle_count == 1 and not first.is_reserved


async def test_one_that_was_reserved_and_has_ended_is_not_kept(
    server: Server, dialer: Dialer, pool: ConnectionPool, kept: socket.socket
) -> None:
    connection = dialer.connect(server.url)
    kept.close()
    while pool.open_count:
        await asyncio.sleep(0)
    connection.close()
    assert pool.idle_count == 0


@pytest.mark.parametrize("method", ["GET /", "POST /"])
@pytest.mark.parametrize("is_seen", [False, True])
async def test_on_one_that_has_ended_nothing_is_written(
    server: Server,
    dialer: Dialer,
    region: Region,
    pool: ConnectionPool,
    kept: socket.socket,
    method: str,
    is_seen: bool,
) -> None:
    connection = dialer.connect(server.url)
    kept.close()
    while is_seen and pool.open_count:  # by the loop, whose descriptor of it is closed then
        await asyncio.sleep(0)
    rpc = rpc_on(connection, method)
    begin(rpc, region)
    called = asyncio.ensure_future(rpc.call(region))
    assert (await server.answer(await server.accept())).startswith(method.encode())
    assert content(await called) == b"ok"
    assert rpc.timing.connection == "new"


async def test_a_get_that_was_written_in_vain_is_repeated(
    server: Server, dialer: Dialer, region: Region, pool: ConnectionPool, kept: socket.socket
) -> None:
    rpc = rpc_on(dialer.connect(server.url), "GET /")
    begin(rpc, region)
    kept.close()
    while pool.open_count:  # the loop hears of it before the call goes on
        await asyncio.sleep(0)
    called = asyncio.ensure_future(rpc.call(region))
    await server.answer(await server.accept())
    assert content(await called) == b"ok"
    assert rpc.timing.connection == "new"


async def test_a_post_that_was_written_in_vain_is_not(
    server: Server, dialer: Dialer, region: Region, kept: socket.socket
) -> None:
    rpc = rpc_on(dialer.connect(server.url), "POST /")
    begin(rpc, region)
    kept.close()
    async with failing("reset", errno.ECONNRESET):
        await rpc.call(region)


async def test_who_attaches_as_the_connection_is_lost_hears_of_it(
    server: Server, dialer: Dialer, region: Region, pool: ConnectionPool, kept: socket.socket
) -> None:
    rpc = rpc_on(dialer.connect(server.url), "POST /")
    begin(rpc, region)
    (stream,) = pool._open
    stream.abort()  # which ends no exchange, as when the loop has looked for one a moment too early
    async with failing("reset", errno.ECONNRESET):
        await rpc.call(region)


async def test_a_call_that_is_dropped_leaves_no_connection(
    server: Server, dialer: Dialer, region: Region, pool: ConnectionPool, kept: socket.socket
) -> None:
    rpc = rpc_on(dialer.connect(server.url), "GET /")
    begin(rpc, region)
    rpc.drop()
    while pool.open_count:
        await asyncio.sleep(0)
    assert pool.idle_count == 0


async def test_a_call_that_is_dropped_and_has_failed_already_is_no_complaint(
    server: Server, dialer: Dialer, region: Region, pool: ConnectionPool, kept: socket.socket
) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    rpc = rpc_on(dialer.connect(server.url), "GET /")
    begin(rpc, region)
    await server.answer(kept, OK + b"more")
    while pool.open_count:
        await asyncio.sleep(0)
    rpc.drop()
    del rpc
    gc.collect()
    assert not complaints


async def test_a_call_that_is_cancelled_spares_the_connection_if_its_reply_is_whole(
    server: Server, dialer: Dialer, region: Region, pool: ConnectionPool, kept: socket.socket
) -> None:
    rpc = rpc_on(dialer.connect(server.url), "GET /")
    begin(rpc, region)
    await server.answer(kept)
    while not pool.idle_count:
        await asyncio.sleep(0)
    other = dialer.connect(server.url)
    assert other.is_reserved
    rpc.drop()
    called = asyncio.ensure_future(ask(other, region, "GET /other"))
    await server.answer(kept)
    assert content(await called) == b"ok"


async def test_what_does_not_fit_at_once_is_written_by_the_loop(
    server: Server, dialer: Dialer, region: Region, kept: socket.socket
) -> None:
    body = bytes(8 << 20)
    rpc = rpc_on(dialer.connect(server.url), "PUT /", body)
    begin(rpc, region)
    called = asyncio.ensure_future(rpc.call(region))
    received = 0
    while received <= len(body):  # the head comes, too
        received += len(await asyncio.get_running_loop().sock_recv(kept, 1 << 20))
    await asyncio.get_running_loop().sock_sendall(kept, OK)
    assert content(await called) == b"ok"


async def test_what_is_malformed_fails_on_the_loop(
    server: Server, dialer: Dialer, region: Region, kept: socket.socket
) -> None:
    connection = dialer.connect(server.url)
    rpc = rpc_on(connection, "GET /\nhost: other")
    begin(rpc, region)
    with pytest.raises(RpcFailed) as failed:
        await rpc.call(region)
    assert failed.value.reason == "malformed"
    assert connection.is_reserved  # for the next
    connection.close()


async def test_who_does_not_ask_elsewhere_writes_on_the_loop(
    server: Server, dialer: Dialer, region: Region, kept: socket.socket
) -> None:
    timing = RpcTiming()
    called = asyncio.ensure_future(ask(dialer.connect(server.url), region, "GET /", timing=timing))
    await server.answer(kept)
    assert content(await called) == b"ok"
    assert timing.connection == "kept"


async def test_a_reserved_connection_can_be_given_away(server: Server, dialer: Dialer, kept: socket.socket) -> None:
    connection = dialer.connect(server.url)
    sock, kind = await connection.detach()
    with sock:
        assert kind == "tcp"
        sock.sendall(b"hello")
        assert await asyncio.get_running_loop().sock_recv(kept, 5) == b"hello"
    assert not connection.is_reserved
