"""The front's memory: whatever clients send, and however little of it they finish or read, it holds what its budget says."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.base.config import HttpConfig
from sockd.http.front import Front
from sockd.http.server import outgoing
from sockd.http.server.bounds.buffers import COPIES, PLACE_BYTES, BufferBudget
from sockd.http.server.listening.sockets import bind_tcp
from sockd.http.server.server import HttpServer
from sockd.linux.event_loop import EventLoop
from tests.fuzz.fuzzing import fuzz
from tests.http.fake_worker import FakeWorker
from tests.http.raw import post
from tests.http.test_crowds import bytes_of

CLIENTS = 6
KB = 1024
BUDGET_BYTES = 1200 * KB
TURNS = 40
"""The turns of the loop after each step."""
CHUNKED = b"POST /run/%b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
PLACES = CLIENTS * 2 * PLACE_BYTES


class FrontServer:
    """A server with a small budget, whose clients are two sources, and whose function `slow` never ends."""

    def __init__(self) -> None:
        self.loop = EventLoop()
        self.raised: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.raised.append(context))
        config = HttpConfig(listen="127.0.0.1:0", max_payload_bytes=500 * KB)
        self.worker = FakeWorker()
        self.budget = BufferBudget(BUDGET_BYTES)
        sockets = bind_tcp("127.0.0.1:0")
        self.server = HttpServer(Front(self.worker, config), sockets, buffers=self.budget)
        self.loop.run_until_complete(self.server.start())

    def held(self) -> int:
        """Bytes of bodies in memory, in requests that are read and in those that wait."""
        exchanges = {exchange for each in self.server._connections for exchange in each.exchanges}
        return sum(bytes_of(exchange) for exchange in exchanges | self.server.running)

    async def play(self, steps: list[tuple[int, str, int]]) -> None:
        clients: dict[int, socket.socket] = {}
        try:
            for number, verb, size in steps:
                client = clients.get(number)
                if client is None:
                    client = clients[number] = socket.create_connection(("127.0.0.1", self.server.port))
                    client.setblocking(False)
                self._act(client, verb, size)
                if verb == "leave":
                    del clients[number]
                for _ in range(TURNS):
                    await asyncio.sleep(0)
                    assert self.budget.used <= BUDGET_BYTES
                    assert COPIES * self.held() <= self.budget.used + COPIES * PLACES
        finally:
            for client in clients.values():
                client.close()
        self.worker.release.set()
        async with asyncio.timeout(5):
            while self.server.connections or self.server.running:
                await asyncio.sleep(0)
        self.worker.release.clear()

    def _act(self, client: socket.socket, verb: str, size: int) -> None:
        try:
            if verb == "leave":
                client.close()
            elif verb == "read":
                client.recv(1 << 20)
            else:
                client.send(message(verb, size))
        except (BlockingIOError, ConnectionError):
            pass

    def close(self) -> None:
        self.loop.run_until_complete(self.server.aclose(0))
        self.loop.close()


def message(verb: str, size: int) -> bytes:
    """What a client sends."""
    body = b"x" * size
    if verb == "small":
        return post("/run/echo", body[:9000])
    if verb == "pipeline":
        return post("/run/echo", b"1") * (size % 700)
    if verb == "chunked":
        return CHUNKED % b"slow" + b"%x\r\n" % (size + 1) + body
    if verb == "unfinished":
        return post("/run/slow", body)[: -1 - size // 2]
    return post({"whole": "/run/echo", "waits": "/run/slow"}[verb], body) if verb != "bytes" else body


VERBS = ("small", "whole", "waits", "unfinished", "chunked", "pipeline", "bytes", "leave", "read")


@pytest.fixture
def api(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[FrontServer]:
    caplog.set_level(logging.ERROR)
    monkeypatch.setattr(
        outgoing, "source_of", lambda transport: f"source {(transport.get_extra_info('peername') or (0, 0))[1] % 2}"
    )
    api = FrontServer()
    yield api
    api.close()
    assert not caplog.records, "an error of ours was logged"


steps = st.tuples(
    st.integers(0, CLIENTS - 1),
    st.sampled_from(VERBS),
    st.sampled_from([1, 3000, 60 * KB, 70 * KB, 200 * KB, 499 * KB, 600 * KB]) | st.integers(1, 500 * KB),
)


@fuzz(120)
@given(st.lists(steps, max_size=25))
def test_what_is_held_stays_within_the_budget_and_is_given_back(
    api: FrontServer, steps: list[tuple[int, str, int]]
) -> None:
    api.loop.run_until_complete(api.play(steps))
    assert (api.budget.used, api.budget.waiting) == (0, 0)
    assert not api.raised
