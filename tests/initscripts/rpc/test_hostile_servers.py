"""Servers that do not do as they should: each gives a typed failure, gives the region back, and spoils no later call."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from sockd_initscripts.region import Region
from sockd_initscripts.rpc import ConnectionPool, Dialer, RpcLimits
from tests.initscripts.rpc.asking import ask, content, failing
from tests.initscripts.rpc.both_loops import ON_BOTH_LOOPS
from tests.initscripts.rpc.peer import Request, peer

pytestmark = ON_BOTH_LOOPS
OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = b"content-length: 1000000\r\n"


PATIENT = RpcLimits(connect_s=10, silence_s=10)
SOON = RpcLimits(connect_s=0.1, silence_s=0.1)
"""For what is to end by it: all else would, too, on a machine that is busy for so long."""


CASES = {
    "endless headers": (OK + b"x: y\r\n" * 20_000, False, "protocol", errno.EPROTO),
    "an endless header": (OK + b"x: " + b"y" * 100_000, False, "protocol", errno.EPROTO),
    "no line ends": (b"HTTP/1.1 200 OK\n\nbody", False, "timeout", errno.ETIMEDOUT),
    "a negative length": (OK + b"content-length: -5\r\n\r\n", False, "protocol", errno.EPROTO),
    "a length beyond numbers": (OK + b"content-length: " + b"9" * 30 + b"\r\n\r\n", False, "protocol", errno.EPROTO),
    "a length beyond the region": (OK + b"content-length: 999999999999\r\n\r\n", False, "region_full", errno.ENOSPC),
    "two lengths": (OK + LENGTH + b"content-length: 5\r\n\r\nhello", False, "protocol", errno.EPROTO),
    "a body that is too short": (OK + LENGTH + b"\r\n" + b"x" * 500_000, True, "reset", errno.ECONNRESET),
    "a body that is too long": (OK + b"content-length: 5\r\n\r\nhello, world", False, "protocol", errno.EPROTO),
    "an end behind the head": (OK + LENGTH + b"\r\n", True, "reset", errno.ECONNRESET),
    "an end within the head": (OK + b"content-le", True, "reset", errno.ECONNRESET),
    "an end without a word": (b"", True, "reset", errno.ECONNRESET),
    "silence": (b"", False, "timeout", errno.ETIMEDOUT),
    "silence within the body": (OK + LENGTH + b"\r\nxxx", False, "timeout", errno.ETIMEDOUT),
    "another protocol": (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", False, "protocol", errno.EPROTO),
    "an upgrade": (b"HTTP/1.1 101 Switching\r\n\r\n", False, "protocol", errno.EPROTO),
    "nothing but interim replies": (b"HTTP/1.1 100 Go\r\n\r\n" * 100, False, "protocol", errno.EPROTO),
    "a chunk that is none": (OK + b"transfer-encoding: chunked\r\n\r\nnot hex\r\n", False, "protocol", errno.EPROTO),
    "a huge chunk": (OK + b"transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n", False, "protocol", errno.EPROTO),
    "a chunk that ends early": (OK + b"transfer-encoding: chunked\r\n\r\nff\r\nabc", True, "reset", errno.ECONNRESET),
    "a second reply behind chunks": (
        OK + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n" + OK + b"content-length: 0\r\n\r\n",
        False,
        "protocol",
        errno.EPROTO,
    ),
}


@pytest.mark.parametrize(
    ("case", "limits"),
    [(name, SOON if case[2] == "timeout" else PATIENT) for name, case in CASES.items()],
    ids=[*CASES],
)
async def test_each_is_a_typed_failure(dialer: Dialer, region: Region, pool: ConnectionPool, case: str) -> None:
    data, ends, reason, number = CASES[case]

    async def answer(request: Request) -> None:
        if request.line.startswith("GET /good"):
            request.answer(b"good")
            return
        request.send(data)
        if ends:
            request.hang_up()

    async with peer(answer) as server:
        connection = dialer.connect(server.url)
        async with failing(reason, number):
            await ask(connection, region, "GET /bad")
        assert region.charged_bytes == 0
        assert pool.idle_count == 0
        pool.limits = PATIENT
        assert content(await ask(connection, region, "GET /good")) == b"good"


async def test_a_slow_drip_ends_with_the_run(dialer: Dialer, region: Region, pool: ConnectionPool) -> None:
    """The test looks after the silence as its timer would, and between two looks there is a drop: no time need pass."""
    drops: asyncio.Queue[bytes] = asyncio.Queue()

    async def answer(request: Request) -> None:
        request.send(OK + LENGTH + b"\r\n")
        while drop := await drops.get():
            request.send(drop)

    async with peer(answer) as server:
        call = asyncio.create_task(ask(dialer.connect(server.url), region, "GET /"))
        while not pool._open:
            await asyncio.sleep(0)
        (stream,) = pool._open
        for count in range(1, 10):
            drops.put_nowait(b".")
            while stream._reply._placed < count:
                await asyncio.sleep(0)
            assert stream._timer is not None
            stream._timer.cancel()
            stream._check_silence()
        assert not call.done()
        call.cancel()  # as a run's deadline does
        with pytest.raises(asyncio.CancelledError):
            await call
        assert region.charged_bytes == 0


async def test_bytes_that_no_one_asked_for_are_no_reply(dialer: Dialer, region: Region, pool: ConnectionPool) -> None:
    body = b"x" * 1_000_000
    more = asyncio.Event()

    async def answer(request: Request) -> None:
        request.answer(body)
        if request.line.startswith("GET /1"):
            await request.writer.drain()
            await more.wait()
            request.answer(b"poison")

    async with peer(answer) as server:
        connection = dialer.connect(server.url)
        assert content(await ask(connection, region, "GET /1")) == body
        assert pool.idle_count == 1
        more.set()
        await server.ended.get()
        assert pool.idle_count == 0
        assert content(await ask(connection, region, "GET /2")) == body
        assert server.connections == 2


async def test_a_port_where_no_one_listens(dialer: Dialer, region: Region) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        connection = dialer.connect(f"http://127.0.0.1:{bound.getsockname()[1]}")
        async with failing("refused", errno.ECONNREFUSED):
            await ask(connection, region, "GET /")


@pytest.mark.parametrize("limits", [SOON], ids=[""])
async def test_a_host_that_does_not_answer(dialer: Dialer, region: Region) -> None:
    with socket.socket() as listener, socket.socket() as first:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        first.connect(listener.getsockname())  # the queue of connections is full now, and the next one's SYN is dropped
        connection = dialer.connect(f"http://127.0.0.1:{listener.getsockname()[1]}")
        async with failing("timeout", errno.ETIMEDOUT):
            await ask(connection, region, "GET /")


async def test_a_name_that_is_none(dialer: Dialer, region: Region) -> None:
    async with failing("unresolved", errno.ECONNREFUSED):
        await ask(dialer.connect("http://a..b:80"), region, "GET /")
