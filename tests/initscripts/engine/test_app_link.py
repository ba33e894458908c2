"""The engine's end of an app link, by itself: order, room, fds, and what an app may say."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from array import array
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sockd_initscripts.engine.app_link import AppLink
from sockd_initscripts.engine.signals import LoopCalls
from sockd_storage_lib.sockd_initscript import wire

pytestmark = pytest.mark.anyio


class Ears:
    """AppEvents that remembers."""

    def __init__(self) -> None:
        self.heard: list[tuple[dict[str, Any], bytes, int | None]] = []
        self.gone = asyncio.Event()
        self.times_gone = 0

    def app_said(self, message: dict[str, Any], payload: bytes, fd: int | None) -> None:
        if message["op"] == "end":
            raise wire.WireError("not for an app to say")
        self.heard.append((message, payload, fd))

    def app_gone(self) -> None:
        self.times_gone += 1
        self.gone.set()


class Pair:
    """A link and the socket at its other end."""

    def __init__(self) -> None:
        self.app, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.app.setblocking(False)
        self.ears = Ears()
        self._calls = LoopCalls(asyncio.get_running_loop())
        self.link = AppLink(ours, self._calls, self.ears)
        self.link.open()

    async def receive(self) -> int:
        """The next message's id."""
        data = await asyncio.get_running_loop().sock_recv(self.app, wire.MAX_DATAGRAM)
        return int(wire.decode(data)[0]["id"])

    def close(self) -> None:
        self.link.close()
        self.app.close()
        self._calls.watched.close()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def message(number: int, text: str = "") -> dict[str, Any]:
    return {"op": "sent", "id": number, "rpc": [text]}


async def test_what_does_not_fit_waits_and_keeps_its_order(pair: Pair) -> None:
    sent = asyncio.Event()
    for number in range(500):
        assert pair.link.send(message(number, "x" * 1000))
    pair.link.when_sent(sent.set)
    assert not sent.is_set()
    assert [await pair.receive() for _ in range(500)] == list(range(500))
    await sent.wait()
    pair.link.when_sent(sent.clear)
    assert not sent.is_set()


async def test_threads_send_without_the_loop(pair: Pair) -> None:
    threads = [threading.Thread(target=pair.link.send, args=(message(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()  # the loop does nothing meanwhile
    assert sorted([await pair.receive() for _ in range(4)]) == [0, 1, 2, 3]


async def test_fds_go_with_their_message_and_are_closed_here(pair: Pair) -> None:
    reading, writing = os.pipe()
    assert pair.link.send(message(1), writing)
    _, beside, _, _ = pair.app.recvmsg(1000, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    os.close(array("i", beside[0][2])[0])
    assert os.read(reading, 1) == b""  # no writer is left
    os.close(reading)


async def test_fds_of_what_was_never_sent_are_closed(pair: Pair) -> None:
    for number in range(300):
        pair.link.send(message(number, "x" * 1000))
    reading, writing = os.pipe()
    pair.link.send(message(1), writing)
    pair.link.close()
    assert os.read(reading, 1) == b""
    os.close(reading)
    reading, writing = os.pipe()
    assert not pair.link.send(message(1), writing)
    assert os.read(reading, 1) == b""
    os.close(reading)


async def test_a_message_over_the_limit_is_refused(pair: Pair) -> None:
    with pytest.raises(wire.WireError):
        pair.link.send(message(1, "x" * wire.MAX_DATAGRAM))


async def test_the_app_is_heard_with_its_payload_and_fd(pair: Pair) -> None:
    pair.app.send(wire.encode({"op": "message", "id": 5}, b"hello"))
    reading, writing = os.pipe()
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [writing]))]
    pair.app.sendmsg([wire.encode({"op": "connection", "id": 6, "addr": "tcp://x:1"})], ancillary)
    os.close(writing)
    pair.app.close()
    await pair.ears.gone.wait()
    (first, payload, none), (second, _, fd) = pair.ears.heard
    assert (first["id"], payload, none, second["addr"]) == (5, b"hello", None, "tcp://x:1")
    assert fd is not None
    os.close(fd)
    os.close(reading)


async def test_what_was_said_is_heard_though_nothing_can_be_sent_any_more(pair: Pair) -> None:
    for number in range(100):  # more than is read in a turn
        pair.app.send(wire.encode({"op": "message", "id": number}))
    pair.app.close()
    pair.link.send(message(1))  # the loop has heard nothing yet
    await pair.ears.gone.wait()
    assert [heard["id"] for heard, _, _ in pair.ears.heard] == list(range(100))
    assert pair.ears.times_gone == 1


async def test_an_app_that_breaks_the_protocol_is_gone(pair: Pair) -> None:
    for number in range(3):
        if number:
            pair.close()
            pair.__init__()  # type: ignore[misc]
        pair.app.send([b"rubbish", b"{}\n", wire.encode({"op": "end", "outcome": "exit", "status": 0})][number])
        await pair.ears.gone.wait()
        assert pair.link.is_closed and not pair.link.send(message(1))
        assert pair.app.recv(10) == b""


async def test_two_fds_are_one_too_many(pair: Pair) -> None:
    reading, writing = os.pipe()
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [writing, writing]))]
    pair.app.sendmsg([wire.encode({"op": "message", "id": 6})], ancillary)
    os.close(writing)
    await pair.ears.gone.wait()
    assert pair.ears.heard == []
    assert os.read(reading, 1) == b""
    os.close(reading)


async def test_a_link_that_is_closed_here_says_nothing_more(pair: Pair) -> None:
    pair.link.close()
    pair.link.close()
    assert pair.app.recv(10) == b""
    assert pair.ears.times_gone == 0
