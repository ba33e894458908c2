"""http:// and https://: what guests may ask, and where replies go."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import ssl
import threading

import pytest

from sockd_initscripts.region import Region
from sockd_initscripts.rpc import ConnectionPool, Dialer, EndpointPolicy, RpcTiming
from sockd_initscripts.rpc.base import RpcFailed
from tests.initscripts.rpc.asking import ask, content, failing
from tests.initscripts.rpc.both_loops import ON_BOTH_LOOPS
from tests.initscripts.rpc.peer import Request, peer

pytestmark = ON_BOTH_LOOPS
BODY = bytes(range(256)) * 8192  # 2 MiB


async def echo(request: Request) -> None:
    request.answer(request.body or b"empty", x_line=request.line)


async def test_a_request_goes_out_as_it_is_worded(dialer: Dialer, region: Region) -> None:
    async with peer(echo) as server:
        connection = dialer.connect(server.url)
        reply = await ask(connection, region, "POST /a%20b?c=d\nX-One: 1\nx-two:  zwei", b"payload")
        assert (reply.status, content(reply)) == (200, b"payload")
        (request,) = server.requests
        assert request.line == "POST /a%20b?c=d HTTP/1.1"
        assert request.headers["x-one"] == "1"
        assert request.headers["x-two"] == " zwei"
        assert request.headers["host"] == f"127.0.0.1:{server.port}"
        assert request.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    "method",
    [
        "GET",
        "get /",
        "GET x",
        "GET / HTTP/1.1",
        "GET /\r\nX: y",
        "GET /\nno colon",
        "GET /\nX : y",
        "GET /\nX: a\rb",
        "GET /\nContent-Length: 5",
        "GET /\nTransfer-Encoding: chunked",
        "GET /\nHost: elsewhere",
        "GET /\nConnection: close",
        "GET /\nUpgrade: h2c",
        "CONNECT /",
        "GET /\x00",
        "GET /ü",
    ],
)
async def test_a_guest_cannot_say_what_frames_a_request(dialer: Dialer, region: Region, method: str) -> None:
    async with peer(echo) as server:
        connection = dialer.connect(server.url)
        async with failing("malformed", errno.EINVAL):
            await ask(connection, region, method)
        assert server.requests == []


async def test_a_body_of_known_length_is_where_it_was_received(dialer: Dialer, region: Region) -> None:
    async def answer(request: Request) -> None:
        request.answer(BODY)

    async with peer(answer) as server:
        timing = RpcTiming()
        reply = await ask(dialer.connect(server.url), region, "GET /", timing=timing)
        assert content(reply) == BODY
        assert reply.buffer and reply.buffer.segment.size == len(BODY), "one allocation, of exactly the length"
        assert timing.bytes == len(BODY)
        assert 0 < timing.sent_ns <= timing.first_byte_ns <= timing.done_ns


@pytest.mark.parametrize("size", [0, 10, 100_000, 3_000_000])
async def test_a_chunked_body_is_collected(dialer: Dialer, region: Region, size: int) -> None:
    body = (BODY * 2)[:size]

    async def answer(request: Request) -> None:
        request.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for start in range(0, size, 70_000):
            chunk = body[start : start + 70_000]
            request.send(b"%x;ext=1\r\n%b\r\n" % (len(chunk), chunk))
        request.send(b"0\r\ntrailer: x\r\n\r\n")

    async with peer(answer) as server:
        connection = dialer.connect(server.url)
        for _ in range(2):
            timing = RpcTiming()
            reply = await ask(connection, region, "GET /", timing=timing)
            assert content(reply) == body
            assert timing.bytes == size
        assert server.connections == 1, "it was kept"


@pytest.mark.parametrize("size", [0, 10, 3_000_000])
async def test_a_body_without_a_length_ends_with_its_connection(dialer: Dialer, region: Region, size: int) -> None:
    async def answer(request: Request) -> None:
        request.send(b"HTTP/1.1 200 OK\r\n\r\n" + (BODY * 2)[:size])
        request.hang_up()

    async with peer(answer) as server:
        reply = await ask(dialer.connect(server.url), region, "GET /")
        assert content(reply) == (BODY * 2)[:size]


@pytest.mark.parametrize("status", [204, 304])
async def test_replies_that_have_no_body(dialer: Dialer, region: Region, status: int) -> None:
    async def answer(request: Request) -> None:
        request.send(b"HTTP/1.1 %d X\r\ncontent-length: 5\r\n\r\n" % status)

    async with peer(answer) as server:
        connection = dialer.connect(server.url)
        for _ in range(2):
            reply = await ask(connection, region, "GET /")
            assert (reply.status, reply.buffer) == (status, None)
        assert (await ask(connection, region, "HEAD /")).buffer is None
        assert server.connections == 1


async def test_interim_replies_are_passed_over(dialer: Dialer, region: Region) -> None:
    async def answer(request: Request) -> None:
        request.send(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
        request.answer(b"real", 418)

    async with peer(answer) as server:
        reply = await ask(dialer.connect(server.url), region, "GET /")
        assert (reply.status, content(reply)) == (418, b"real")


async def test_a_redirect_is_a_reply(dialer: Dialer, region: Region) -> None:
    async def answer(request: Request) -> None:
        request.answer(b"over there", 302, location="http://169.254.169.254/")

    async with peer(answer) as server:
        reply = await ask(dialer.connect(server.url), region, "GET /")
        assert (reply.status, content(reply)) == (302, b"over there")
        assert len(server.requests) == 1


async def test_requests_at_the_same_time_have_a_connection_each(dialer: Dialer, region: Region) -> None:
    everybody = asyncio.Event()

    async def answer(request: Request) -> None:
        if len(server.requests) == 3:
            everybody.set()
        await everybody.wait()
        request.answer(request.line.encode())

    async with peer(answer) as server:
        connection = dialer.connect(server.url)
        replies = await asyncio.gather(*(ask(connection, region, f"GET /{number}") for number in range(3)))
        assert [content(reply) for reply in replies] == [b"GET /%d HTTP/1.1" % number for number in range(3)]
        assert server.connections == 3


async def test_tls_with_a_name_keeps_the_name(dialer: Dialer, region: Region, server_tls: ssl.SSLContext) -> None:
    names: list[str | None] = []
    server_tls.sni_callback = lambda _socket, name, _context: names.append(name)

    async def answer(request: Request) -> None:
        request.answer(BODY)

    async with peer(answer, tls=server_tls) as server:
        connection = dialer.connect(f"https://LocalHost:{server.port}")
        for kind in ("new", "kept"):
            timing = RpcTiming()
            assert content(await ask(connection, region, "GET /", timing=timing)) == BODY
            assert timing.connection == kind
        assert names == ["localhost"]
        assert server.requests[0].headers["host"] == f"localhost:{server.port}"


async def test_a_certificate_that_no_one_vouches_for(region: Region, server_tls: ssl.SSLContext) -> None:
    pool = ConnectionPool(tls=ssl.create_default_context())
    async with peer(echo, tls=server_tls) as server:
        connection = Dialer({}, EndpointPolicy(), pool).connect(server.url)
        async with failing("tls", errno.EPROTO):
            await ask(connection, region, "GET /")
    await pool.aclose()


async def test_a_full_region_is_reported_and_the_connection_closed(dialer: Dialer, region: Region) -> None:
    async def answer(request: Request) -> None:
        if "big" in request.line:
            request.send(b"HTTP/1.1 200 OK\r\ncontent-length: 999999999\r\n\r\n" + BODY)
        elif "chunks" in request.line:
            request.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            request.send((b"%x\r\n%b\r\n" % (len(BODY), BODY)) * 9)
        else:
            request.answer(b"small")

    async with peer(answer) as server:
        connection = dialer.connect(server.url)
        for path in ("/big", "/chunks"):
            async with failing("region_full", errno.ENOSPC):
                await ask(connection, region, f"GET {path}")
            assert region.charged_bytes == 0
        assert content(await ask(connection, region, "GET /")) == b"small"
        assert server.connections == 3


async def test_a_cancelled_call_gives_back_what_it_had(dialer: Dialer, region: Region, pool: ConnectionPool) -> None:
    begun = asyncio.Event()

    async def answer(request: Request) -> None:
        request.send(b"HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n" + BODY)
        await request.writer.drain()
        begun.set()
        await request.reader.read()

    async with peer(answer) as server:
        call = asyncio.create_task(ask(dialer.connect(server.url), region, "GET /"))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert region.charged_bytes == 0
        assert (await server.ended.get()) and pool.idle_count == 0


async def test_on_a_kept_connection_the_request_is_written_before_anything_waits(
    dialer: Dialer, region: Region
) -> None:
    reply = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_once() -> None:
            accepted, _ = listener.accept()
            accepted.recv(4096)
            accepted.sendall(reply)
            sockets.append(accepted)

        sockets: list[socket.socket] = []
        server = threading.Thread(target=answer_once)
        server.start()
        connection = dialer.connect(f"http://127.0.0.1:{listener.getsockname()[1]}")
        await ask(connection, region, "GET /1")
        server.join()
        with sockets[0] as accepted:
            call = ask(connection, region, "GET /2")
            waiting = call.send(None)  # one step, within this turn of the loop
            assert select.select([accepted], [], [], 0)[0]
            assert accepted.recv(4096).startswith(b"GET /2 HTTP/1.1\r\n")
            accepted.sendall(reply)
            assert asyncio.isfuture(waiting)
            await asyncio.wait([waiting])
            with pytest.raises(StopIteration) as done:
                call.send(None)
            assert content(done.value.value) == b"ok"


async def test_a_large_request_goes_out_whole(dialer: Dialer, region: Region) -> None:
    async with peer(echo) as server:
        connection = dialer.connect(server.url)
        for _ in range(2):
            assert content(await ask(connection, region, "PUT /", BODY * 3)) == BODY * 3


async def test_a_get_is_unchanged_as_long_as_its_etag(dialer: Dialer, region: Region) -> None:
    current = {"etag": '"one"'}

    async def answer(request: Request) -> None:
        if request.headers.get("if-none-match") == current["etag"]:
            request.answer(b"", status=304)
        else:
            request.answer(b"body", etag=current["etag"])

    async with peer(answer) as server:
        connection = dialer.connect(server.url)
        reply = await ask(connection, region, "GET /\nx-one: 1")
        descriptor = connection.descriptor("GET /\nx-one: 1", b"")
        assert (reply.etag, reply.headers and reply.headers["etag"]) == ('"one"', '"one"')
        assert await connection.is_unchanged(descriptor, reply.etag)
        assert server.requests[-1].headers["x-one"] == "1"
        current["etag"] = '"two"'
        with pytest.raises(RpcFailed):
            await connection.is_unchanged(descriptor, reply.etag)
        current["etag"] = 'W/"three"'
        assert (await ask(connection, region, "GET /")).etag == "", (
            "a weak one does not say that the bytes are the same"
        )
