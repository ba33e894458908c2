"""Workers of a group that ask each other: who is answered, what a client's key may, and how long a silent one is waited for."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from sockd.base.config import Config, HttpConfig
from sockd.base.errors import NoCapacity
from sockd.http.access.keys import Keys
from sockd.http.front import Front
from sockd.http.management.api import Management
from sockd.http.management.keyed import KeyedManagement
from sockd.http.management.peer_api import PeerApi
from sockd.http.management.peer_key import HOLDS_S, PeerKey
from sockd.http.management.peers import MOST_AT_ONCE, NoSuchWorker, Peers, WorkerSilent
from sockd.http.server.listening.sockets import bind_tcp
from sockd.http.server.server import HttpServer
from tests.http.fake_worker import FakeWorker
from tests.http.raw import get, raw

pytestmark = pytest.mark.anyio
KEY = PeerKey(bytes(32))
TARGET = b"/functions"


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys.open(tmp_path / "keys.json")


@pytest.fixture
async def port(worker: FakeWorker, keys: Keys, tmp_path: Path) -> AsyncIterator[int]:
    """Worker w2 of the group listens here."""
    app = Management(worker, Config(), tmp_path).app
    api = PeerApi(app, KeyedManagement(app, keys), KEY, "w2")
    server = HttpServer(Front(worker, HttpConfig(listen="127.0.0.1:0"), peers=api), bind_tcp("127.0.0.1:0"))
    await server.start()
    yield server.port
    await server.aclose(0)


def peers(port: int) -> Peers:
    """The workers as w1 knows them."""

    async def addresses() -> Mapping[str, str]:
        return {"w2": f"127.0.0.1:{port}"}

    return Peers(KEY, addresses)


async def test_a_worker_of_the_group_is_answered(port: int) -> None:
    async with peers(port).ask("w2", TARGET, b"") as answer:
        assert (answer.status, answer.is_endless) == (200, False)
        assert isinstance(json.loads(await answer.body()), list)
    async with peers(port).ask("w2", b"/traces/none?a=%20", b"") as answer:
        assert answer.status == 404
    with pytest.raises(NoSuchWorker):
        async with peers(port).ask("w3", TARGET, b""):
            pass


def signed(key: PeerKey = KEY, worker: str = "w2", target: bytes = TARGET, shown: bytes = b"", at: float = 0.0) -> str:
    return f"x-sockd-peer: {key.sign(worker, target, shown, time.time() + at).decode()}"


@pytest.mark.parametrize(
    "headers",
    [
        list,
        lambda: ["x-sockd-peer: "],
        lambda: [f"x-sockd-peer: {time.time()} "],
        lambda: [signed(PeerKey(b"other"))],
        lambda: [signed(worker="w3")],
        lambda: [signed(target=b"/status")],
        lambda: [signed(at=-2 * HOLDS_S)],
        lambda: [signed(at=2 * HOLDS_S)],
        lambda: [signed(at=float("nan"))],
        lambda: [signed(), signed()],
        lambda: [signed(shown=b"Bearer x")],
        lambda: [signed(), "Authorization: Bearer x"],
    ],
)
async def test_what_no_worker_of_the_group_has_signed_for_this_one_is_refused(
    port: int, headers: Callable[[], list[str]]
) -> None:
    async with raw(port) as client:
        assert (await client.ask(get("/group/functions", *headers()))).status == 403


async def test_a_worker_is_asked_for_what_it_has_and_asks_no_further(port: int) -> None:
    async with raw(port) as client:
        assert (await client.ask(get("/group/functions", signed(), method="POST"))).status == 400
    async with peers(port).ask("w2", b"/workers/w3/functions", b"") as answer:
        assert answer.status == 400


async def test_a_clients_key_may_no_more_through_another_worker(port: int, keys: Keys) -> None:
    key = f"Bearer {await keys.add('some', ['read'], ['mine'])}".encode()
    for target, shown, status in (
        (TARGET, key, 200),
        (b"/functions/other/logs", key, 403),
        (b"/tree", key, 403),
        (b"/keys", key, 403),
        (TARGET, b"Bearer sockd_0", 401),
    ):
        async with peers(port).ask("w2", target, shown) as answer:
            assert answer.status == status, target


async def test_an_answer_without_an_end_comes_in_parts(port: int, worker: FakeWorker) -> None:
    name = worker.functions.all()[0].name if worker.functions.all() else "hello"
    async with peers(port).ask("w2", f"/functions/{name}/logs?follow=1".encode(), b"") as answer:
        assert (answer.status, answer.is_endless) == (200, True)
        async for part in answer.parts():
            assert part
            break


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n1", b"what?\r\n\r\n"])
async def test_a_worker_that_does_not_answer_is_named_and_not_waited_for(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sockd.http.management.peers.ANSWER_S", 0.1)
    asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        asked.set()
        await reader.read()  # returns when the worker that asks has closed the connection
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(WorkerSilent, match="worker w2 does not answer"):
        async with peers(port).ask("w2", TARGET, b"") as answer:
            await answer.body()
    assert asked.is_set()
    server.close()
    with pytest.raises(WorkerSilent, match="w2"):
        async with peers(port).ask("w2", TARGET, b""):
            pass


async def test_requests_to_other_workers_are_bounded_in_number(port: int) -> None:
    known, waiting = asyncio.Event(), []

    async def addresses() -> Mapping[str, str]:
        await known.wait()
        return {"w2": f"127.0.0.1:{port}"}

    all_peers = Peers(KEY, addresses)

    async def ask() -> int:
        async with all_peers.ask("w2", TARGET, b"") as answer:
            return answer.status

    waiting = [asyncio.ensure_future(ask()) for _ in range(MOST_AT_ONCE)]
    await asyncio.sleep(0)
    with pytest.raises(NoCapacity):
        await ask()
    known.set()
    assert set(await asyncio.gather(*waiting)) == {200}
    assert await ask() == 200
