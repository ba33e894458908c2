"""The server: where it listens, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import stat
from pathlib import Path

import pytest

from sockd.base.config import HttpConfig
from sockd.base.errors import BadConfig
from sockd.http.front import Front
from sockd.http.server.listening.sockets import bind_tcp, bind_unix, parse_listen, url_of
from sockd.http.server.server import HttpServer
from sockd.linux.network import loopback
from tests.http.fake_worker import FakeWorker
from tests.http.raw import get, post, raw

pytestmark = pytest.mark.anyio


def somebody_else_at(host: str) -> socket.socket:
    """Bound there to a port that the kernel gives nobody (ip_local_port_range)."""
    for port in random.sample(range(20_000, 30_000), 100):
        with contextlib.suppress(OSError):
            return loopback.bind([host], port)[0]
    raise AssertionError("no port of a hundred is free")


def front(worker: FakeWorker | None = None) -> Front:
    return Front(worker or FakeWorker(), HttpConfig())


async def test_it_answers_as_soon_as_start_returns_and_leaves_signals_alone() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    server = HttpServer(front(), bind_tcp("127.0.0.1:0"))
    await server.start()
    async with raw(server.port) as client:
        assert (await client.ask(get("/healthz"))).status == 200
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    await server.aclose(0)


async def test_closing_frees_the_port_and_leaves_no_task_or_fd() -> None:
    first = HttpServer(front(), bind_tcp("127.0.0.1:0"))
    await first.start()
    async with raw(first.port) as client:  # a loop's first stream costs an fd for ever: libuv's reserve for EMFILE
        await client.ask(get("/healthz"))
    await first.aclose(0)
    tasks, fds = len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))
    server = HttpServer(front(), bind_tcp("127.0.0.1:0"))
    await server.start()
    async with raw(server.port) as client:
        await client.ask(get("/healthz"))
        await server.aclose(5)
        assert await client.rest() == b""
    await server.aclose(5)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.port)
    assert len(asyncio.all_tasks()) == tasks
    assert len(os.listdir("/proc/self/fd")) == fds


async def test_a_drain_closes_idle_connections_at_once_and_waits_for_running_requests() -> None:
    worker = FakeWorker()
    server = HttpServer(front(worker), bind_tcp("127.0.0.1:0"))
    await server.start()
    async with raw(server.port) as idle, raw(server.port) as busy:
        await idle.ask(get("/healthz"))
        busy.send(post("/run/slow", b"1"))
        await worker.started.wait()
        closing = asyncio.create_task(server.aclose(10))
        assert await idle.rest() == b""
        assert not closing.done()
        worker.release.set()
        reply = await busy.reply()
        assert (reply.body, reply.headers["connection"]) == (b"1", "close")
        await asyncio.wait_for(closing, 5)


async def test_a_request_that_outlives_the_drain_is_answered_503() -> None:
    worker = FakeWorker()
    server = HttpServer(front(worker), bind_tcp("127.0.0.1:0"))
    await server.start()
    async with raw(server.port) as client:
        client.send(post("/run/slow", b"1"))
        await worker.started.wait()
        await asyncio.wait_for(server.aclose(0.1), 5)
        reply = await client.reply()
        assert (reply.status, reply.json["errorType"]) == (503, "ServiceUnavailableException")


async def test_a_drain_ends_although_a_body_never_does() -> None:
    server = HttpServer(front(), bind_tcp("127.0.0.1:0"))
    await server.start()
    async with raw(server.port) as client:
        client.send(b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
        await asyncio.wait_for(server.aclose(0.1), 5)
        await client.rest()
    assert server.connections == 0


async def test_localhost_is_both_loopbacks_on_one_port() -> None:
    sockets = bind_tcp("localhost:0")
    server = HttpServer(front(), sockets)
    await server.start()
    assert len({address[1] for address in server.addresses}) == 1
    for address in server.addresses:
        _, writer = await asyncio.open_connection(address[0], server.port)
        writer.close()
    await server.aclose(0)


def test_a_taken_port_is_an_error_that_names_it() -> None:
    (first,) = loopback.bind(["127.0.0.1"], 0)
    with first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(OSError, match="in use") as caught:
            bind_tcp(f"127.0.0.1:{port}")
    assert caught.value.__notes__[:2] == [f"127.0.0.1:{port}", f"listen: 127.0.0.1:{port}"]


@pytest.mark.parametrize("listen", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0"])
def test_a_loopback_that_somebody_else_has_is_an_error_whichever_was_asked_for(listen: str) -> None:
    """Half of the clients that say `localhost` would be theirs."""
    other = "127.0.0.1" if listen == "[::1]" else "::1"
    try:
        loopback.bind([other], 0)[0].close()
    except OSError:
        pytest.skip(f"this host has no {other}")
    with somebody_else_at(other) as theirs:
        theirs.listen()
        port = theirs.getsockname()[1]
        with pytest.raises(OSError, match="in use") as caught:
            bind_tcp(f"{listen}:{port}")
        assert f"{loopback.show(other)}:{port}" in caught.value.__notes__
    for sock in bind_tcp(f"{listen}:{port}"):
        sock.close()


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("127.0.0.1:0", "http://127.0.0.1:7"),
        ("localhost:0", "http://127.0.0.1:7"),
        ("[::1]:0", "http://[::1]:7"),
        ("0.0.0.0:0", "http://127.0.0.1:7"),
        ("[::]:0", "http://[::1]:7"),
        ("192.0.2.1:0", "http://192.0.2.1:7"),
        ("worker.example:0", "http://worker.example:7"),
    ],
)
def test_the_url_is_an_address_that_is_held(listen: str, url: str) -> None:
    assert url_of(listen, 7) == url


@pytest.mark.parametrize(
    "listen", ["5000", ":5000", "localhost", "localhost:x", "localhost:70000", "[::1]", "a:-1", "a:²"]
)
def test_what_is_not_host_and_port_is_refused(listen: str) -> None:
    with pytest.raises(BadConfig):
        parse_listen(listen)


def test_host_and_port_are_taken_apart() -> None:
    assert parse_listen("[::1]:80") == ("::1", 80)
    assert parse_listen("0.0.0.0:0") == ("0.0.0.0", 0)


async def test_the_unix_socket_is_its_owners_alone_at_a_path_of_any_length(tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 40)
    directory.mkdir()
    path = directory / "sockd.sock"
    for _ in range(2):  # the second time over what the first left behind
        server = HttpServer(front(), [bind_unix(path)])
        await server.start()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        os.symlink(directory, tmp_path / "s")
        async with raw(str(tmp_path / "s" / "sockd.sock")) as client:
            assert (await client.ask(get("/healthz"))).status == 200
        (tmp_path / "s").unlink()
        await server.aclose(0)


def test_a_file_in_the_sockets_place_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "sockd.sock").write_text("precious")
    with pytest.raises(BadConfig):
        bind_unix(tmp_path / "sockd.sock")
    assert (tmp_path / "sockd.sock").read_text() == "precious"


def test_binding_leaks_nothing_when_it_fails(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        bind_unix(tmp_path / "missing" / "sockd.sock")
    with pytest.raises(OSError):
        bind_tcp("192.0.2.1:80")
    assert len(os.listdir("/proc/self/fd")) == before
