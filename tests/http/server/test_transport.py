"""Sockets as connections use them: what is written leaves whole and in order, and the end is notified once."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from sockd.http.server.listening.accept_queue import AcceptQueue
from sockd.http.server.listening.turns import Turns
from sockd.http.server.transport import HIGH_BYTES, READ_BYTES, Transport

pytestmark = pytest.mark.anyio
MUCH = bytes(range(256)) * 16_000


class Hearing:
    """Records the calls that it gets."""

    def __init__(self) -> None:
        self.scratch = memoryview(bytearray(READ_BYTES))
        self.read = b""
        self.reported: list[str] = []
        self.lost = asyncio.Event()
        self.stays_open = False
        self.breaks = False
        self.unsent = 0

    def buffer_updated(self, nbytes: int) -> None:
        if self.breaks:
            raise RuntimeError("a bug")
        self.read += bytes(self.scratch[:nbytes])

    def eof_received(self) -> bool:
        self.reported.append("eof")
        return self.stays_open

    def pause_writing(self) -> None:
        self.reported.append("pause")

    def resume_writing(self) -> None:
        self.reported.append("resume")

    def unsent_changed(self, nbytes: int) -> None:
        self.unsent = nbytes

    def connection_lost(self, exc: Exception | None) -> None:
        self.reported.append("lost" if exc is None else type(exc).__name__)
        self.lost.set()


@pytest.fixture
async def accept_queue() -> AsyncIterator[AcceptQueue]:
    accept_queue = AcceptQueue(Turns())
    yield accept_queue
    accept_queue.close()


@pytest.fixture
async def pair(accept_queue: AcceptQueue) -> AsyncIterator[tuple[Transport, Hearing, socket.socket]]:
    ours, peer = socket.socketpair()
    for each in (ours, peer):
        each.setblocking(False)
    hearing = Hearing()
    transport = Transport(ours, hearing, hearing.scratch, accept_queue)
    yield transport, hearing, peer
    transport.abort()
    await hearing.lost.wait()
    peer.close()


async def rest_of(peer: socket.socket) -> bytes:
    read = b""
    with suppress(ConnectionResetError):
        while data := await asyncio.get_running_loop().sock_recv(peer, 1 << 16):
            read += data
    return read


async def test_what_is_written_before_it_closes_leaves_whole(
    pair: tuple[Transport, Hearing, socket.socket],
) -> None:
    transport, hearing, peer = pair
    transport.write(b"head")
    transport.writelines((MUCH, b"", MUCH))
    transport.write(b"tail")
    assert hearing.reported == ["pause"] and len(MUCH) > HIGH_BYTES
    transport.close()
    transport.write(b"too late")
    assert await rest_of(peer) == b"head" + MUCH + MUCH + b"tail"
    await hearing.lost.wait()
    assert hearing.reported == ["pause", "resume", "lost"] or hearing.reported == ["pause", "lost"]


async def test_an_abort_drops_what_is_unsent_and_is_reported_in_a_later_step(
    pair: tuple[Transport, Hearing, socket.socket],
) -> None:
    transport, hearing, peer = pair
    transport.write(MUCH)
    transport.abort()
    assert hearing.reported == ["pause"]
    await hearing.lost.wait()
    assert len(await rest_of(peer)) < len(MUCH)
    assert hearing.reported == ["pause", "lost"]


@pytest.mark.parametrize("is_kept", [False, True])
async def test_what_comes_is_reported_and_then_the_end(
    pair: tuple[Transport, Hearing, socket.socket], *, is_kept: bool
) -> None:
    transport, hearing, peer = pair
    transport.resume_reading()
    if is_kept:
        transport.keep()
    peer.send(b"one")
    while not hearing.read:
        await asyncio.sleep(0)
    transport.pause_reading()
    peer.send(b"two")
    peer.shutdown(socket.SHUT_WR)
    assert not transport.has_hung_up()
    for _ in range(10):
        await asyncio.sleep(0)
    assert hearing.read == b"one"
    transport.resume_reading()
    await hearing.lost.wait()
    assert hearing.read == b"onetwo" and hearing.reported == ["eof", "lost"]


async def test_a_peer_that_has_gone_is_seen_before_it_is_read(
    pair: tuple[Transport, Hearing, socket.socket],
) -> None:
    transport, hearing, peer = pair
    hearing.stays_open = True
    assert not transport.has_hung_up()
    peer.shutdown(socket.SHUT_WR)
    assert transport.has_hung_up()
    assert hearing.reported == []
    assert transport.read() == 0
    assert hearing.reported == ["eof"]
    transport.write(b"answer")
    assert peer.recv(100) == b"answer"


async def test_writing_to_a_peer_that_is_gone_ends_it(pair: tuple[Transport, Hearing, socket.socket]) -> None:
    transport, hearing, peer = pair
    peer.close()
    transport.write(b"answer")
    await hearing.lost.wait()
    assert hearing.reported == ["BrokenPipeError"]


async def test_a_connection_that_fails_ends_alone(
    pair: tuple[Transport, Hearing, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    transport, hearing, peer = pair
    hearing.breaks = True
    transport.resume_reading()
    peer.send(b"one")
    await hearing.lost.wait()
    assert hearing.reported == ["RuntimeError"]
    assert "a connection failed" in caplog.text
