"""WebSockets of services at /run: an independent implementation of RFC 6455 at both ends, with the worker between them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

from tests.daemon.running import RunningDaemon
from tests.daemon.services.test_services import row, wait_state

pytestmark = [pytest.mark.root, pytest.mark.anyio]

CLIENTS = 64
SERVER = """
import asyncio, http, os
from websockets.asyncio.server import serve
async def echo(connection):
    await connection.send(f"{connection.request.path} {connection.request.headers['x-forwarded-prefix']}")
    async for message in connection:
        if message == "exit":
            os._exit(5)
        if message == "bye":
            await connection.close(4000, "as asked")
        elif message == "flood":
            for _ in range(200):
                await connection.send(bytes(100_000))
        else:
            await connection.send(message)
def plain(connection, request):
    if request.path == "/refused":
        return connection.respond(http.HTTPStatus.FORBIDDEN, "not for you")
    if "upgrade" not in request.headers:
        return connection.respond(http.HTTPStatus.OK, "plain")
async def main():
    async with serve(echo, "127.0.0.1", int(os.environ["PORT"]), process_request=plain, max_size=None):
        await asyncio.get_running_loop().create_future()
asyncio.run(main())
"""
TOML = """
kind = "service"
command = ["/usr/bin/python3", "server.py"]
network = "none"
memory_mb = 256
[service]
port = 8080
"""


def files(settings: str = "", source: str = SERVER) -> dict[str, str]:
    """A server of the package `websockets`, which is pure Python, in the service's own code."""
    package = Path(websockets.__file__).parent
    own = {f"websockets/{each.relative_to(package)}": each.read_text() for each in package.rglob("*.py")}
    return {**own, "server.py": source, "sockd.toml": TOML + settings}


@contextlib.asynccontextmanager
async def opened(
    daemon: RunningDaemon, name: str, path: str = "/", **options: object
) -> AsyncIterator[ClientConnection]:
    """A WebSocket whose server has sent its first message."""
    url = f"ws://127.0.0.1:{daemon.port}/run/{name}{path}"
    async with connect(url, max_size=None, proxy=None, **options) as client:  # type: ignore[arg-type]
        assert await client.recv() == f"{path} /run/{name}"
        yield client


async def test_messages_pass_in_both_directions_and_the_close_with_its_code(daemon: RunningDaemon) -> None:
    daemon.deploy("chat", files())
    async with opened(daemon, "chat", "/room?x=1", origin=f"http://127.0.0.1:{daemon.port}") as client:
        for message in ("hello", "ü" * 70_000, b"\0" * 300_000, ""):
            await client.send(message)
            assert await client.recv() == message
        await (await client.ping())
        assert row(daemon, "chat")["connections"] == 1
        await client.send("bye")
        with pytest.raises(ConnectionClosed) as closed:
            await client.recv()
        assert closed.value.rcvd is not None and (closed.value.rcvd.code, closed.value.rcvd.reason) == (
            4000,
            "as asked",
        )
    daemon.when(lambda: not row(daemon, "chat")["connections"])
    assert daemon.request("GET", "/run/chat/").body == b"plain"


async def test_64_clients_at_once_each_get_their_own(daemon: RunningDaemon) -> None:
    daemon.deploy("many", files())

    async def talk(number: int) -> None:
        async with opened(daemon, "many") as client:
            for turn in range(20):
                await client.send(f"{number} {turn}")
                assert await client.recv() == f"{number} {turn}"

    await asyncio.gather(*(talk(number) for number in range(CLIENTS)))
    assert row(daemon, "many")["starts"] == 1


async def test_an_open_websocket_keeps_a_service_running_and_its_end_lets_it_stop(daemon: RunningDaemon) -> None:
    daemon.deploy("held", files("idle_s = 0.2\n"))
    async with opened(daemon, "held") as client:
        daemon.deploy("other", files("idle_s = 0.2\n"))
        async with opened(daemon, "other"):
            pass
        wait_state(daemon, "other", "stopped")
        assert row(daemon, "held")["state"] == "running", "longer idle than the one that was stopped"
        await client.send("still there")
        assert await client.recv() == "still there"
    wait_state(daemon, "held", "stopped")


async def test_a_client_that_goes_without_a_word_frees_its_connection(daemon: RunningDaemon) -> None:
    daemon.deploy("left", files())
    async with opened(daemon, "left") as client:
        await client.send("flood")
        client.transport.abort()
    daemon.when(lambda: not row(daemon, "left")["connections"])


async def test_a_slow_reader_slows_the_program_and_gets_all(daemon: RunningDaemon) -> None:
    daemon.deploy("slow", files())
    async with opened(daemon, "slow", max_queue=1) as client, opened(daemon, "slow") as other:
        await client.send("flood")
        await other.send("not behind it")
        assert await other.recv() == "not behind it"
        assert [len(await client.recv()) for _ in range(200)] == [100_000] * 200


async def test_a_program_that_ends_ends_its_websockets(daemon: RunningDaemon) -> None:
    daemon.deploy("ending", files())
    async with opened(daemon, "ending") as client:
        await client.send("exit")
        with pytest.raises(ConnectionClosed):
            await client.recv()
    daemon.when(lambda: row(daemon, "ending")["failures"] == 1)  # a connection may reach the program that ends
    async with opened(daemon, "ending"):
        assert "exit status 5" in row(daemon, "ending")["reason"]


async def test_a_deploy_leaves_open_websockets_to_the_old_version_for_drain_s(daemon: RunningDaemon) -> None:
    daemon.deploy("rolling", files("drain_s = 1\n"))
    async with opened(daemon, "rolling") as old:
        daemon.deploy("rolling", files("drain_s = 1\n", SERVER.replace("send(message)", 'send("new")')))
        daemon.when(lambda: row(daemon, "rolling")["draining"] == 1)
        await old.send("old")
        assert await old.recv() == "old"
        async with opened(daemon, "rolling") as new:
            await new.send("old")
            assert await new.recv() == "new"
        with pytest.raises(ConnectionClosed):
            await old.recv()


async def test_what_the_program_or_the_worker_refuses_is_a_plain_answer(daemon: RunningDaemon) -> None:
    daemon.deploy("picky", files("connections = 1\n"))
    daemon.deploy("function", "def f(event): return 1")
    refused = {"/run/picky/refused": (403, b"not for you"), "/run/none/": (404, b"no function")}
    for path, (status, words) in refused.items():
        with pytest.raises(InvalidStatus) as failed:
            await connect(f"ws://127.0.0.1:{daemon.port}{path}", proxy=None)
        assert failed.value.response.status_code == status and words in failed.value.response.body
    async with opened(daemon, "picky"):
        with pytest.raises(InvalidStatus) as failed:
            await connect(f"ws://127.0.0.1:{daemon.port}/run/picky/", proxy=None)
        assert failed.value.response.status_code == 429


async def test_a_page_of_another_origin_opens_no_websocket(daemon: RunningDaemon) -> None:
    daemon.deploy("local", files())
    for origin in ("http://example.com", f"http://localhost:{daemon.port + 1}", "null"):
        with pytest.raises(InvalidStatus) as failed:
            await connect(f"ws://127.0.0.1:{daemon.port}/run/local/", origin=Origin(origin), proxy=None)
        assert failed.value.response.status_code == 403
    assert row(daemon, "local")["state"] == "stopped"


def handshake(port: int, *headers: str) -> socket.socket:
    """A client that has sent a request with a key of a WebSocket."""
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    lines = ["GET /run/exact/ HTTP/1.1", f"Host: 127.0.0.1:{port}", "Sec-WebSocket-Version: 13", *headers]
    lines.append("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
    client.sendall("\r\n".join([*lines, "", ""]).encode())
    return client


def test_nothing_switches_that_was_not_asked_to(daemon: RunningDaemon) -> None:
    """Else a proxy in front would take for an answer what is the other protocol."""
    daemon.deploy("exact", files())
    for headers in ([], ["Upgrade: websocket"], ["Connection: upgrade", "Upgrade: h2c"]):
        with handshake(daemon.port, *headers) as client:
            assert client.recv(12) == b"HTTP/1.1 200", headers
    with handshake(daemon.port, "Connection: keep-alive, Upgrade", "Upgrade: WebSocket") as client:
        answer = client.recv(4096).lower()
        assert answer.startswith(b"http/1.1 101") and b"sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=" in answer
        assert b"connection: upgrade\r\n" in answer and b"connection: close" not in answer


@pytest.fixture
def own_daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    daemon = RunningDaemon.start(tmp_path / "state")
    yield daemon
    daemon.close()


async def test_a_worker_that_ends_does_not_wait_for_open_websockets(own_daemon: RunningDaemon) -> None:
    own_daemon.deploy("endless", files())
    async with opened(own_daemon, "endless") as client:
        begun = asyncio.get_running_loop().time()
        assert await asyncio.to_thread(own_daemon.terminate) == 0, own_daemon.lines
        took_s = asyncio.get_running_loop().time() - begun
        with pytest.raises(ConnectionClosed):
            await client.recv()
    assert took_s < 10, "the drain of requests takes 30 s at most"
