"""A cache node against clients that do not behave: what it answers, and that it does not grow."""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream

from sockd.images.caches import node_server, stripes
from sockd.images.caches.node_http import MAX_HEAD_BYTES, request_head, stripe_key, stripe_path
from sockd.images.caches.node_server import NodeServer
from sockd.images.caches.node_store import MOST_UNWRITTEN, NodeStore

pytestmark = pytest.mark.anyio

CHUNK_BYTES = 40_000
CHUNK = bytes(range(200)) * 200
NAME = hashlib.sha256(CHUNK).digest()
STRIPE = stripes.split(CHUNK)[0]
PATH = stripe_path(NAME, 0)


@asynccontextmanager
async def served(
    *, memory_bytes: int = 1 << 20, directory: Path | None = None, token: str = "", most_connections: int = 10
) -> AsyncIterator[tuple[NodeServer, int]]:
    store = NodeStore.open(memory_bytes, directory, 1 << 20, chunk_bytes=CHUNK_BYTES, correlated_s=0)
    server = NodeServer(store, chunk_bytes=CHUNK_BYTES, token=token, most_connections=most_connections)
    _, port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.aclose()


async def answer(stream: SocketStream) -> tuple[int, bytes]:
    """The status and the body of the next answer; (0, b"") at the end of the stream."""
    received = b""
    try:
        while b"\r\n\r\n" not in received:
            received += await stream.receive()
        head, _, body = received.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
        while len(body) < int(length or 0):
            body += await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return 0, b""
    return int(head.split()[1]), body


async def ask(port: int, *request: bytes) -> tuple[int, bytes]:
    """The answer to one request on a connection of its own."""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(b"".join(request))
        return await answer(stream)


def put(path: str = PATH, body: bytes = STRIPE, *, token: str = "") -> tuple[bytes, bytes]:
    return request_head("PUT", path, host="node", token=token, body_bytes=len(body)), body


def get(path: str = PATH, *, token: str = "") -> bytes:
    return request_head("GET", path, host="node", token=token)


async def test_a_stripe_is_stored_and_returned() -> None:
    async with served() as (_, port):
        assert await ask(port, get()) == (404, b"")
        assert await ask(port, *put()) == (204, b"")
        assert await ask(port, get()) == (200, STRIPE)
        status, counters = await ask(port, get("/status"))
        assert status == 200 and json.loads(counters)["memory_hits"] == 1


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"junk\r\n\r\n", 400),
        (b"GET / HTTP/2\r\n\r\n", 400),
        (b"GET /stripes/../etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"GET " + PATH.encode().upper() + b" HTTP/1.1\r\n\r\n", 404),
        (b"DELETE " + PATH.encode() + b" HTTP/1.1\r\n\r\n", 405),
        (b"PUT " + PATH.encode() + b" HTTP/1.1\r\n\r\n", 411),
        (b"PUT " + PATH.encode() + b" HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", 411),
        (b"PUT " + PATH.encode() + b" HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
        (b"PUT " + PATH.encode() + b" HTTP/1.1\r\nContent-Length: -5\r\n\r\n", 400),
        (b"PUT " + PATH.encode() + b" HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n", 400),
        (b"PUT " + PATH.encode() + b" HTTP/1.1\r\nContent-Length: 999999\r\n\r\n", 413),
        (b"GET " + PATH.encode() + b" HTTP/1.1\r\n spaces : x\r\n\r\n", 400),
        (b"GET " + PATH.encode() + b" HTTP/1.1\r\nX: " + b"x" * MAX_HEAD_BYTES, 431),
        (b"\0" * 100_000, 431),
    ],
)
async def test_a_malformed_request_is_refused(request_bytes: bytes, status: int) -> None:
    async with served() as (server, port):
        assert (await ask(port, request_bytes))[0] == status
        assert server.refused_requests == 1
        assert await ask(port, *put()) == (204, b"")


@pytest.mark.parametrize("body", [b"x", STRIPE[:-1], STRIPE + b"x", STRIPE[:-1] + b"\1", bytes(len(STRIPE))])
async def test_a_body_that_is_no_intact_stripe_is_not_stored(body: bytes) -> None:
    async with served() as (_, port):
        assert (await ask(port, *put(body=body)))[0] in (400, 413)
        assert await ask(port, get()) == (404, b"")


async def test_requests_without_the_token_are_refused_before_their_body_is_read() -> None:
    async with served(token="secret") as (_, port):
        for head in (get(), get(token="other"), put()[0], put(token="secre")[0]):
            assert (await ask(port, head))[0] == 401
        assert (await ask(port, *put(token="secret")))[0] == 204
        assert await ask(port, get(token="secret")) == (200, STRIPE)


async def test_a_client_that_asks_for_permission_to_send_gets_it() -> None:
    async with served() as (_, port), await anyio.connect_tcp("127.0.0.1", port) as stream:
        head, body = put()
        await stream.send(head.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
        assert await answer(stream) == (100, b"")
        await stream.send(body)
        assert await answer(stream) == (204, b"")


async def test_requests_that_arrive_together_are_answered_in_order() -> None:
    async with served() as (_, port), await anyio.connect_tcp("127.0.0.1", port) as stream:
        other = stripe_path(NAME, 3)
        await stream.send(get(other) + b"".join(put()) + get() + get(other) + get()[:10])
        received = b""
        while not received.endswith(b"404 Not Found\r\nContent-Length: 0\r\n\r\n") or received.count(b"HTTP/1.1") < 4:
            received += await stream.receive()
        assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"404", b"204", b"200", b"404"]


async def test_memory_and_file_stay_below_their_limits(tmp_path: Path) -> None:
    async with served(memory_bytes=200_000, directory=tmp_path) as (server, port):
        for number in range(300):
            name = hashlib.sha256(b"%d" % number).digest()
            assert (await ask(port, *put(stripe_path(name, 0))))[0] == 204
            assert server.store.held_bytes <= 200_000
        assert sum(file.stat().st_blocks * 512 for file in tmp_path.iterdir()) <= (1 << 20) + (64 << 10)


async def test_a_stripe_that_left_memory_is_read_from_the_file(tmp_path: Path) -> None:
    async with served(memory_bytes=3 * len(STRIPE), directory=tmp_path) as (server, port):
        assert (await ask(port, *put()))[0] == 204
        for number in range(8):
            name = hashlib.sha256(b"%d" % number).digest()
            assert (await ask(port, *put(stripe_path(name, 0))))[0] == 204
        with anyio.fail_after(10):
            while server.store._unwritten:
                await anyio.sleep(0)
        assert await ask(port, get()) == (200, STRIPE)
        assert server.store.file_hits == 1


async def test_stripes_stay_out_of_the_file_when_the_disk_falls_behind(tmp_path: Path) -> None:
    async with served(directory=tmp_path) as (server, port):
        server.store._unwritten = MOST_UNWRITTEN
        assert (await ask(port, *put()))[0] == 204
        assert server.store.dropped_writes == 1
        assert await ask(port, get()) == (200, STRIPE)
        server.store._unwritten = 0


async def test_a_connection_beyond_the_limit_is_refused() -> None:
    async with served(most_connections=2) as (server, port):
        async with await anyio.connect_tcp("127.0.0.1", port) as one, await anyio.connect_tcp("127.0.0.1", port) as two:
            for stream in (one, two):
                await stream.send(get())
                assert (await answer(stream))[0] == 404
            async with await anyio.connect_tcp("127.0.0.1", port) as third:
                assert (await answer(third))[0] == 503
        with anyio.fail_after(5):
            while (await ask(port, get()))[0] != 404:
                await anyio.sleep(0)
        assert server.refused_connections >= 1


async def test_a_client_that_takes_no_answers_gets_no_more_of_them() -> None:
    async with served() as (server, port):
        assert (await ask(port, *put()))[0] == 204
        with socket.create_connection(("127.0.0.1", port)) as greedy:
            greedy.setblocking(False)
            sent = 0
            with anyio.fail_after(10):
                for _ in range(2000):
                    try:
                        sent += greedy.send(get() * 50)
                    except BlockingIOError:
                        break
                    await anyio.sleep(0)
                while not all(each._is_full for each in server._connections):
                    await anyio.sleep(0)
            (connection,) = server._connections
            assert connection._transport.get_write_buffer_size() < node_server.CONNECTION_BYTES
            assert len(connection._buffer) + len(connection._body) < node_server.CONNECTION_BYTES
            served_before = server.store.memory_hits
            for _ in range(20):
                await anyio.sleep(0)
            assert server.store.memory_hits == served_before


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(node_server, "STALL_S", 0.05)
        patched.setattr(node_server, "IDLE_S", 0.2)
        yield


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("begun", [b"", b"GET /str", get() + b"PUT ", put()[0] + STRIPE[:100]])
async def test_an_incomplete_request_and_an_idle_connection_are_ended(begun: bytes) -> None:
    async with served() as (server, port), await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(begun or get())
        with anyio.fail_after(10):
            while (await answer(stream))[0]:
                pass
        assert not server._connections


def test_only_paths_of_stripes_are_keys() -> None:
    assert stripe_key(PATH.encode()) == NAME + b"\0"
    assert stripe_key(stripe_path(NAME, 4).encode()) == NAME + b"\4"
    for path in ("/stripes/", PATH + "0", PATH[:-1] + "5", "/stripes/" + "g" * 64 + "/0", PATH + "?x"):
        assert stripe_key(path.encode()) is None
