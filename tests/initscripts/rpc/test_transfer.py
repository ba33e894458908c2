"""Connections that change hands: to the app, plain or relayed, and from it."""

from __future__ import annotations

import asyncio
import errno
import http.client
import socket
import ssl

import pytest

from sockd_initscripts.region import Region
from sockd_initscripts.rpc import ConnectionPool, Dialer, EndpointPolicy, RpcFailed, RpcLimits
from tests.initscripts.rpc.asking import ask, content, failing
from tests.initscripts.rpc.both_loops import ON_BOTH_LOOPS
from tests.initscripts.rpc.peer import Request, peer

pytestmark = ON_BOTH_LOOPS
BIG = bytes(range(256)) * 20_000


async def answer(request: Request) -> None:
    request.answer(BIG if request.line.startswith("GET /big") else request.line.encode())


def http_client_gets(sock: socket.socket, path: str) -> bytes:
    """As an app does it: the standard library on a connection that is there already."""
    connection = http.client.HTTPConnection("named.example")
    connection.sock = sock
    connection.request("GET", path)
    return connection.getresponse().read()


async def test_an_app_goes_on_with_the_same_connection(dialer: Dialer, region: Region, pool: ConnectionPool) -> None:
    async with peer(answer) as server:
        connection = dialer.connect(server.url)
        await ask(connection, region, "GET /ours")
        sock, kind = await connection.detach()
        assert kind == "tcp"
        assert pool.idle_count == 0
        with sock:
            await pool.aclose()  # nothing of the engine's is left that the connection could end with
            assert pool.open_count == 0
            for path in ("/theirs", "/big"):
                body = await asyncio.to_thread(http_client_gets, sock, path)
                assert body == (BIG if path == "/big" else b"GET /theirs HTTP/1.1")
            assert server.connections == 1
            assert len({request.client_port for request in server.requests}) == 1
            assert server.requests[0].client_port == sock.getsockname()[1]
            assert server.ended.empty(), "no end was sent"
        assert await server.ended.get()


async def test_one_that_was_never_used_can_be_given_too(dialer: Dialer) -> None:
    async with peer(answer) as server:
        sock, _ = await dialer.connect(server.url).detach()
        with sock:
            assert await asyncio.to_thread(http_client_gets, sock, "/first") == b"GET /first HTTP/1.1"


async def test_a_request_under_way_keeps_a_connection_here(dialer: Dialer, region: Region) -> None:
    release = asyncio.Event()

    async def slow(request: Request) -> None:
        await release.wait()
        request.answer()

    async with peer(slow) as server:
        connection = dialer.connect(server.url)
        call = asyncio.create_task(ask(connection, region, "GET /"))
        await asyncio.sleep(0)
        async with failing("busy", errno.EBUSY):
            await connection.detach()
        release.set()
        await call


async def test_a_tcp_conversation_is_given_away(dialer: Dialer, region: Region) -> None:
    async with peer(answer) as server:
        connection = dialer.connect(f"tcp://127.0.0.1:{server.port}")
        reply = await ask(connection, region, "line", b"GET /x HTTP/1.1\r\n\r\n")
        assert content(reply) == b"HTTP/1.1 200 X\r\n"
        async with failing("busy", errno.EBUSY):
            await connection.detach()  # the rest of that reply has been read already
        fresh = dialer.connect(f"tcp://127.0.0.1:{server.port}")
        sock, kind = await fresh.detach()
        connection.close()
        fresh.close()
        with sock:
            assert kind == "tcp"
            assert await asyncio.to_thread(http_client_gets, sock, "/y") == b"GET /y HTTP/1.1"


async def test_tls_is_relayed(dialer: Dialer, region: Region, server_tls: ssl.SSLContext, pool: ConnectionPool) -> None:
    async with peer(answer, tls=server_tls) as server:
        connection = dialer.connect(server.url)
        await ask(connection, region, "GET /ours")
        sock, kind = await connection.detach()
        assert kind == "relay"
        assert (pool.relay_count, pool.open_count) == (1, 0)
        with sock:
            for path in ("/theirs", "/big", "/more"):
                body = await asyncio.to_thread(http_client_gets, sock, path)
                assert body == (BIG if path == "/big" else f"GET {path} HTTP/1.1".encode())
        assert await server.ended.get()
        assert len({request.client_port for request in server.requests}) == 1
        while pool.relay_count:
            await asyncio.sleep(0)


async def test_a_relay_ends_with_the_server(dialer: Dialer, server_tls: ssl.SSLContext) -> None:
    async def last(request: Request) -> None:
        request.answer(b"last")
        request.hang_up()

    async with peer(last, tls=server_tls) as server:
        sock, _ = await dialer.connect(server.url).detach()
        with sock:
            assert await asyncio.to_thread(http_client_gets, sock, "/") == b"last"
            assert await asyncio.to_thread(sock.recv, 1) == b""


async def test_a_relay_holds_little_for_an_app_that_does_not_read(dialer: Dialer, server_tls: ssl.SSLContext) -> None:
    sent = 0
    stalled = asyncio.Event()

    async def endless(request: Request) -> None:
        nonlocal sent
        request.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while sent < 200 << 20:
            request.send(b"x" * (1 << 18))
            try:
                async with asyncio.timeout(0.3):
                    await request.writer.drain()
            except TimeoutError:
                stalled.set()
                return
            sent += 1 << 18

    async with peer(endless, tls=server_tls) as server:
        sock, _ = await dialer.connect(server.url).detach()
        with sock:
            await asyncio.to_thread(sock.sendall, b"GET / HTTP/1.1\r\n\r\n")
            await stalled.wait()
            assert sent < 32 << 20, "what the kernel's buffers hold, and little else"


class TestBounds:
    """How many apps may use TLS through the engine."""

    @pytest.fixture
    def limits(self) -> RpcLimits:
        return RpcLimits(relays=1)

    async def test_relays_are_few(self, dialer: Dialer, server_tls: ssl.SSLContext) -> None:
        async with peer(answer, tls=server_tls) as server:
            sock, _ = await dialer.connect(server.url).detach()
            with sock:
                async with failing("busy", errno.EBUSY):
                    await dialer.connect(server.url).detach()


async def test_a_connection_of_the_apps_is_gone_on_with(dialer: Dialer, region: Region, pool: ConnectionPool) -> None:
    async with peer(answer) as server:
        sock = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", server.port))
        port = sock.getsockname()[1]
        assert await asyncio.to_thread(http_client_gets, sock, "/theirs") == b"GET /theirs HTTP/1.1"
        connection = dialer.adopt(sock, f"http://named.example:{server.port}")
        for _ in range(2):
            assert content(await ask(connection, region, "GET /ours")) == b"GET /ours HTTP/1.1"
        assert {request.client_port for request in server.requests} == {port}
        assert server.requests[-1].headers["host"] == f"named.example:{server.port}"
        other = dialer.connect(server.url)
        await ask(other, region, "GET /other")
        assert server.connections == 2, "it is nobody else's"
        connection.close()
        assert await server.ended.get() == port


async def test_a_raw_conversation_of_the_apps(dialer: Dialer, region: Region) -> None:
    async with peer(answer) as server:
        sock = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", server.port))
        connection = dialer.adopt(sock, f"tcp://127.0.0.1:{server.port}")
        reply = await ask(connection, region, "line", b"GET / HTTP/1.1\r\n\r\n")
        assert content(reply) == b"HTTP/1.1 200 X\r\n"
        connection.close()


async def test_what_cannot_be_adopted(pool: ConnectionPool) -> None:
    dialer = Dialer({}, EndpointPolicy(["10.0.0.0/8"]), pool)
    anywhere = Dialer({}, EndpointPolicy(), pool)
    pair = socket.socketpair()
    async with peer(answer) as server:
        connected = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", server.port))
        with pair[0], pair[1], connected, socket.socket() as loose:
            cases: list[tuple[Dialer, socket.socket, str, int]] = [
                (anywhere, pair[0], "http://x", errno.EOPNOTSUPP),
                (anywhere, loose, "http://x", errno.EINVAL),
                (anywhere, connected, "https://x", errno.EOPNOTSUPP),
                (anywhere, connected, "grpc://x:1", errno.EOPNOTSUPP),
                (anywhere, connected, "nonsense", errno.EINVAL),
                (dialer, connected, "http://x", errno.EACCES),
            ]
            for chosen, sock, address, number in cases:
                with pytest.raises(RpcFailed) as failure:
                    chosen.adopt(sock, address)
                assert failure.value.errno == number
                assert sock.fileno() >= 0, "it is still the caller's"
        await server.ended.get()


async def test_grpc_connections_stay_here(dialer: Dialer) -> None:
    connection = dialer.connect("grpc://127.0.0.1:9")
    async with failing("unsupported", errno.EOPNOTSUPP):
        await connection.detach()
    connection.close()


async def test_one_that_is_adopted_and_closed_at_once(dialer: Dialer) -> None:
    async with peer(answer) as server:
        for scheme in ("http", "tcp"):
            sock = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", server.port))
            dialer.adopt(sock, f"{scheme}://127.0.0.1:{server.port}").close()
            await server.ended.get()
