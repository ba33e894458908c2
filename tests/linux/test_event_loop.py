"""The event loop: a descriptor with an error is watched until its owner removes it, as on asyncio's own loop."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest
import uvloop

from sockd.linux.event_loop import EventLoop

READ_BYTES = 1000
SENT_BYTES = 2500
TURNS = 50
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: to close is to reset."""
LOOPS = [asyncio.SelectorEventLoop, EventLoop]


def reset_tcp() -> socket.socket:
    """A connection whose peer has sent something and then reset it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    peer.sendall(bytes(SENT_BYTES))
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    peer.close()
    return ours


def reset_unix() -> socket.socket:
    """Return a unix socket that was reset: a peer that closes one with unread data resets it (unix(7))."""
    ours, peer = socket.socketpair()
    ours.sendall(b"unread")
    peer.sendall(bytes(SENT_BYTES))
    peer.close()
    return ours


@pytest.fixture(params=[reset_tcp, reset_unix])
def sock(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    with request.param() as sock:
        sock.setblocking(False)
        yield sock


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    loop = request.param()
    yield loop
    loop.close()


class Reader:
    """Reads a little whenever it is called, and ends with the error."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, then: Callable[[], None]) -> None:
        self.loop, self.sock, self.then = loop, sock, then
        self.came = 0
        self.error: OSError | None = None
        loop.add_reader(sock.fileno(), self.read)

    def read(self) -> None:
        try:
            self.came += len(self.sock.recv(READ_BYTES))
        except ConnectionResetError as error:
            self.error = error
            self.loop.remove_reader(self.sock.fileno())
            self.loop.stop()
        else:
            self.then()


def turns(loop: asyncio.AbstractEventLoop, count: int = TURNS) -> None:
    """Have it look at its descriptors so many times, or until it is stopped."""

    async def turn() -> None:
        for _ in range(count):
            await asyncio.sleep(0)
        loop.stop()

    task = loop.create_task(turn())
    loop.run_forever()
    task.cancel()
    loop.run_until_complete(asyncio.wait([task]))


def test_all_that_came_before_a_reset_is_read_and_then_the_reset(
    loop: asyncio.AbstractEventLoop, sock: socket.socket
) -> None:
    reader = Reader(loop, sock, lambda: None)
    turns(loop)
    assert reader.came == SENT_BYTES
    assert reader.error is not None


def test_a_reader_may_be_removed_and_added_in_its_own_call(
    loop: asyncio.AbstractEventLoop, sock: socket.socket
) -> None:
    def again() -> None:
        loop.remove_reader(sock.fileno())
        loop.add_reader(sock.fileno(), reader.read)

    reader = Reader(loop, sock, again)
    turns(loop)
    assert (reader.came, reader.error is not None) == (SENT_BYTES, True)


def test_a_removed_reader_is_not_called_again(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    calls: list[int] = []

    def once() -> None:
        calls.append(1)
        loop.remove_reader(sock.fileno())

    loop.add_reader(sock.fileno(), once)
    turns(loop)
    assert calls == [1]


@pytest.mark.parametrize("when", ["in the call", "after it"])
def test_a_writer_can_be_added_to_a_descriptor_with_an_error(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, when: str
) -> None:
    written: list[int] = []

    def write() -> None:
        written.append(reader.came)
        loop.remove_writer(sock.fileno())

    def first() -> None:
        if reader.came == READ_BYTES:
            if when == "in the call":
                loop.add_writer(sock.fileno(), write)
            else:
                loop.call_soon(loop.add_writer, sock.fileno(), write)

    reader = Reader(loop, sock, first)
    turns(loop)
    assert len(written) == 1
    assert (reader.came, reader.error is not None) == (SENT_BYTES, True)


def test_both_directions_are_watched_until_each_is_removed(
    loop: asyncio.AbstractEventLoop, sock: socket.socket
) -> None:
    written: list[int] = []
    reader = Reader(loop, sock, lambda: None)
    loop.add_writer(sock.fileno(), lambda: written.append(reader.came))
    turns(loop)
    assert (reader.came, reader.error is not None) == (SENT_BYTES, True)
    assert len(written) >= SENT_BYTES // READ_BYTES
    loop.remove_writer(sock.fileno())


def test_a_callback_that_raises_is_called_again(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    raised: list[object] = []
    loop.set_exception_handler(lambda _, context: raised.append(str(context["exception"])))

    def fails() -> None:
        raise ValueError(reader.came)

    reader = Reader(loop, sock, fails)
    turns(loop)
    assert (reader.came, reader.error is not None) == (SENT_BYTES, True)
    assert raised == ["1000", "2000", "2500"]


def test_a_descriptor_whose_number_the_call_gives_to_another_file_is_watched_as_that(
    loop: asyncio.AbstractEventLoop, sock: socket.socket
) -> None:
    calls: list[bytes] = []
    other, peer = socket.socketpair()
    number = sock.fileno()

    def replace() -> None:
        loop.remove_reader(number)
        os.dup2(other.fileno(), number)
        loop.add_reader(number, read)

    def read() -> None:
        calls.append(os.read(number, READ_BYTES))
        loop.remove_reader(number)

    with other, peer:
        loop.add_reader(number, replace)
        turns(loop)
        assert not calls
        peer.send(b"1")
        turns(loop)
    assert calls == [b"1"]


def test_uvloop_still_gives_up(sock: socket.socket) -> None:
    """When this fails, uvloop does what asyncio does, and what `EventLoop` says of watches is to be deleted."""
    loop = uvloop.Loop()
    reader = Reader(loop, sock, lambda: None)
    turns(loop)
    assert (reader.came, reader.error) == (READ_BYTES, None)
    loop.remove_reader(sock.fileno())
    loop.close()


def test_no_timer_is_early(loop: asyncio.AbstractEventLoop) -> None:
    assert early(loop) == []


def test_uvloops_timers_are_still_early() -> None:
    """When this fails, `EventLoop.call_later` is to be deleted."""
    loop = uvloop.Loop()
    assert early(loop)
    loop.close()


def early(loop: asyncio.AbstractEventLoop) -> list[float]:
    """By how much timers of 0.1 to 10 ms were called before their time, if any were."""
    found: list[float] = []

    async def timers() -> None:
        for delay_s in (number / 10_000 for number in range(1, 101)):
            called = asyncio.Event()
            due_s = time.monotonic() + delay_s
            loop.call_later(delay_s, called.set)
            await called.wait()
            left_s = due_s - time.monotonic()
            if left_s > 0:
                found.append(left_s)

    loop.run_until_complete(timers())
    return found
