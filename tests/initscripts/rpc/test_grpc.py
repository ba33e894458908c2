"""grpc://: raw unary calls, against grpcio's own server in another process."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest

from sockd_initscripts.region import Region
from sockd_initscripts.rpc import ConnectionPool, Dialer, EndpointPolicy, RpcLimits, RpcTiming, preload
from tests.initscripts.rpc.asking import ask, content, failing

pytestmark = pytest.mark.anyio
SERVER = Path(__file__).with_name("grpc_server.py")


@pytest.fixture(scope="module", autouse=True)
def _core() -> None:
    """gRPC keeps fds and threads of its own from its first channel on; no test is to blame for them."""
    asyncio.run(preload())


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    command = [sys.executable, str(SERVER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdin
        yield f"grpc://localhost:{process.stdout.readline().strip()}"
        process.stdin.close()


@pytest.mark.parametrize("size", [0, 5, 6_000_000])
async def test_messages_of_all_sizes(dialer: Dialer, region: Region, address: str, size: int) -> None:
    connection = dialer.connect(address)
    timing = RpcTiming()
    reply = await ask(connection, region, "/test.Echo/Same", b"m" * size, timing)
    assert (reply.status, content(reply)) == (0, b"m" * size)
    assert timing.bytes == size
    assert 0 < timing.sent_ns <= timing.first_byte_ns <= timing.done_ns
    connection.close()


async def test_a_channel_is_kept(dialer: Dialer, region: Region, address: str) -> None:
    kinds = []
    for _ in range(2):
        connection = dialer.connect(address)
        timing = RpcTiming()
        peer = content(await ask(connection, region, "/test.Echo/Peer", timing=timing))
        kinds.append((timing.connection, peer))
        connection.close()
    assert kinds[1][0] == "kept"
    assert kinds[0][1] == kinds[1][1]


async def test_a_servers_errors_are_replies(dialer: Dialer, region: Region, address: str) -> None:
    connection = dialer.connect(address)
    reply = await ask(connection, region, "/test.Echo/Missing")
    assert (reply.status, content(reply)) == (grpc.StatusCode.NOT_FOUND.value[0], b"no such thing")
    reply = await ask(connection, region, "/test.Echo/Unknown")
    assert reply.status == grpc.StatusCode.UNIMPLEMENTED.value[0]
    connection.close()


@pytest.mark.parametrize("limits", [RpcLimits(silence_s=0.1)], ids=[""])
async def test_no_one_answers(dialer: Dialer, region: Region, address: str) -> None:
    connection = dialer.connect(address)
    async with failing("timeout", errno.ETIMEDOUT):
        await ask(connection, region, "/test.Echo/Never")
    connection.close()


async def test_no_one_listens(dialer: Dialer, region: Region) -> None:
    unheard = dialer.connect("grpc://127.0.0.1:9")
    async with failing("refused", errno.ECONNREFUSED):
        await ask(unheard, region, "/test.Echo/Same")
    unheard.close()


async def test_a_full_region(dialer: Dialer, region: Region, address: str) -> None:
    connection = dialer.connect(address)
    async with failing("region_full", errno.ENOSPC):
        await ask(connection, region, "/test.Echo/Same", b"m" * 17_000_000)
    connection.close()


@pytest.mark.parametrize("method", ["", "test.Echo/Same", "/test.Echo", "/a/b/c", "/a\r\n/b"])
async def test_methods_that_are_none(dialer: Dialer, region: Region, address: str, method: str) -> None:
    connection = dialer.connect(address)
    async with failing("malformed", errno.EINVAL):
        await ask(connection, region, method)
    connection.close()


async def test_channels_are_bounded(region: Region, address: str) -> None:
    pool = ConnectionPool(RpcLimits(channels=2, silence_s=5))
    for tenant in range(4):
        connection = Dialer({"A": str(tenant)}, EndpointPolicy(), pool).connect(address)
        assert content(await ask(connection, region, "/test.Echo/Same", b"m")) == b"m"
        connection.close()
    await pool.aclose()
