"""tcp://: where replies end, and that a broken conversation is not gone on with."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from sockd_initscripts.region import Region
from sockd_initscripts.rpc import Dialer, RpcLimits, RpcTiming
from tests.initscripts.rpc.asking import ask, content, failing

pytestmark = pytest.mark.anyio
BIG = bytes(range(256)) * 4096
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def talking(talk: Talk) -> AsyncIterator[str]:
    """The address of a server that talks so; it hangs up when it has nothing more to say."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            await talk(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 20):
        writer.write(data)


@pytest.mark.parametrize(
    ("method", "sent", "received"),
    [
        ("bytes:5", b"hello", b"hello"),
        (f"bytes:{len(BIG)}", BIG, BIG),
        ("line", b"a line\n", b"a line\n"),
        ("line", b"\n", b"\n"),
        ("line", b"x" * 500_000 + b"\n", b"x" * 500_000 + b"\n"),
        ("u32be", b"\0\0\0\5hello", b"hello"),
        ("u32be", b"\0\0\0\0", b""),
        ("u32be", len(BIG).to_bytes(4, "big") + BIG, BIG),
    ],
)
async def test_replies_one_after_the_other(
    dialer: Dialer, region: Region, method: str, sent: bytes, received: bytes
) -> None:
    async with talking(echo) as address:
        connection = dialer.connect(address)
        for _ in range(3):
            timing = RpcTiming()
            assert content(await ask(connection, region, method, sent, timing)) == received
            assert timing.bytes == len(received)
            assert 0 < timing.sent_ns <= timing.done_ns
            assert 0 < timing.first_byte_ns <= timing.done_ns
        connection.close()


async def test_rpcs_at_the_same_time_take_turns(dialer: Dialer, region: Region) -> None:
    async with talking(echo) as address:
        connection = dialer.connect(address)
        lines = [b"%d\n" % number for number in range(20)]
        replies = await asyncio.gather(*(ask(connection, region, "line", line) for line in lines))
        assert [content(reply) for reply in replies] == lines
        connection.close()


async def test_what_came_behind_a_reply_is_the_next_ones(dialer: Dialer, region: Region) -> None:
    async with talking(echo) as address:
        connection = dialer.connect(address)
        assert content(await ask(connection, region, "line", b"one\ntwo\n\0\0\0\3abcdefgh")) == b"one\n"
        assert content(await ask(connection, region, "line")) == b"two\n"
        assert content(await ask(connection, region, "u32be")) == b"abc"
        assert content(await ask(connection, region, "bytes:5")) == b"defgh"
        connection.close()


@pytest.mark.parametrize("size", [0, 5, 1_000_000])
async def test_a_reply_until_the_end(dialer: Dialer, region: Region, size: int) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(BIG[:size])

    async with talking(talk) as address:
        connection = dialer.connect(address)
        assert content(await ask(connection, region, "eof", b"go\n")) == BIG[:size]
        async with failing("reset", errno.ECONNRESET):
            await ask(connection, region, "line")
        connection.close()


@pytest.mark.parametrize("method", ["", "bytes:", "bytes:0", "bytes:-1", "bytes:1x", "lines", "u32le"])
async def test_framings_that_are_none(dialer: Dialer, region: Region, method: str) -> None:
    async with talking(echo) as address:
        connection = dialer.connect(address)
        async with failing("malformed", errno.EINVAL):
            await ask(connection, region, method)
        connection.close()


SOON, LATE = RpcLimits(silence_s=0.1), RpcLimits(silence_s=10)


@pytest.mark.parametrize(
    ("method", "sent", "reason", "number", "limits"),
    [
        ("bytes:500000", b"short", "timeout", errno.ETIMEDOUT, SOON),
        ("line", b"no end", "timeout", errno.ETIMEDOUT, SOON),
        ("u32be", b"\xff\xff\xff\xff", "region_full", errno.ENOSPC, LATE),
        ("bytes:999999999999", b"x", "region_full", errno.ENOSPC, LATE),
    ],
)
async def test_a_broken_conversation_is_over(
    dialer: Dialer, region: Region, method: str, sent: bytes, reason: str, number: int
) -> None:
    async with talking(echo) as address:
        connection = dialer.connect(address)
        async with failing(reason, number):
            await ask(connection, region, method, sent)
        assert region.charged_bytes == 0
        async with failing("reset", errno.ECONNRESET):
            await ask(connection, region, "line", b"again\n")
        connection.close()


async def test_an_end_within_the_reply(dialer: Dialer, region: Region) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())

    for method in ("line", "bytes:9", "u32be"):
        async with talking(talk) as address:
            connection = dialer.connect(address)
            async with failing("reset", errno.ECONNRESET):
                await ask(connection, region, method, b"\0\0\n" if method != "line" else b"\n")
                await ask(connection, region, method)
            connection.close()


async def test_close_before_it_was_ever_used(dialer: Dialer) -> None:
    async with talking(echo) as address:
        dialer.connect(address).close()
        connection = dialer.connect(address)
        sock, _ = await connection.detach()
        connection.close()
        sock.close()
