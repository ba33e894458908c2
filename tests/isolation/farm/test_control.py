"""The daemon's end of the control wire and of the channel, with a peer in this process that does as the test says."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from sockd.isolation.farm.control import MOST_STRAYS, ControlWire, ZygoteGone, ZygoteRefused, take_pidfd
from sockd.isolation.sandbox.channel import Channel
from sockd.isolation.sandbox.frame_decoder import FrameDecoder
from sockd.isolation.sandbox.read_turns import ReadTurns
from sockd_zygote import linux, protocol
from sockd_zygote.protocol import ProtocolError

pytestmark = pytest.mark.anyio

BUFFER = bytearray(protocol.CONTROL_MAX_BYTES)


class Peer:
    """A Zygote as far as its wire goes."""

    def __init__(self) -> None:
        self.theirs, self.socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ended = 0

    def wire(self) -> ControlWire:
        def note() -> None:
            self.ended += 1

        return ControlWire(self.theirs, note)

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        data, fds = linux.receive(self.socket, BUFFER, protocol.CONTROL_MAX_FDS)
        return protocol.decode_control(data), fds

    def answer(self, number: int, fds: tuple[int, ...] = (), **fields: object) -> None:
        linux.send(self.socket, protocol.encode_control({"op": "done", "id": number, **fields}), fds)

    def close(self) -> None:
        self.socket.close()
        self.theirs.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    try:
        yield peer
    finally:
        peer.close()


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def ask(wire: ControlWire, op: str = "x", fds: tuple[int, ...] = (), **fields: object) -> asyncio.Task[Any]:
    """A request under way."""
    task = asyncio.create_task(wire.request(op, fds, deadline_s=5, **fields))
    await turn()
    return task


async def test_answers_find_their_requests_in_any_order(peer: Peer) -> None:
    wire = peer.wire()
    tasks = [await ask(wire, n=n) for n in range(3)]
    numbers = [peer.receive()[0]["id"] for _ in range(3)]
    for number in reversed(numbers):
        peer.answer(number, echo=number)
    assert [(await task).message["echo"] for task in tasks] == numbers
    assert wire.in_flight == 0
    wire.close()


async def test_descriptors_cross_both_ways_as_copies(peer: Peer) -> None:
    wire = peer.wire()
    null = os.open("/dev/null", os.O_RDWR)
    task = await ask(wire, fds=(null, null))
    message, fds = peer.receive()
    assert len({null, *fds}) == 3 and not any(os.get_inheritable(fd) for fd in fds)
    peer.answer(message["id"], (fds[0],))
    (given,) = (await task).fds
    assert not os.get_inheritable(given)
    for fd in (null, given, *fds):
        os.close(fd)
    wire.close()


async def test_a_refusal_is_one(peer: Peer) -> None:
    wire = peer.wire()
    task = await ask(wire)
    null = os.open("/dev/null", os.O_RDWR)
    peer.answer(peer.receive()[0]["id"], (null,), op="refused", error="no")
    os.close(null)
    with pytest.raises(ZygoteRefused, match=r"^no$"):
        await task
    assert not wire.closed
    wire.close()


@pytest.mark.parametrize("data", [b"", b"x", b"{}", b'{"op":"done","id":"1"}', b"[" * 60_000, b"\xff"])
async def test_what_is_no_message_ends_the_wire(peer: Peer, data: bytes) -> None:
    wire = peer.wire()
    task = await ask(wire)
    null = os.open("/dev/null", os.O_RDWR)
    if data:
        linux.send(peer.socket, data, (null,))
    else:
        peer.socket.close()
    os.close(null)
    with pytest.raises(ZygoteGone):
        await task
    assert wire.closed and peer.ended == 1
    with pytest.raises(ZygoteGone):
        await wire.request("x", (), deadline_s=1)


async def test_too_many_descriptors_end_the_wire(peer: Peer) -> None:
    wire = peer.wire()
    task = await ask(wire)
    null = os.open("/dev/null", os.O_RDWR)
    linux.send(peer.socket, protocol.encode_control({"op": "done", "id": 1}), (null,) * (protocol.CONTROL_MAX_FDS + 3))
    os.close(null)
    with pytest.raises(ZygoteGone):
        await task
    assert peer.ended == 1


async def test_answers_that_no_one_waits_for_are_dropped_with_their_descriptors(peer: Peer) -> None:
    wire = peer.wire()
    task = await ask(wire)
    number = peer.receive()[0]["id"]
    task.cancel()
    await turn()
    assert not task.done()  # what the request was sent with is in use until the answer
    null = os.open("/dev/null", os.O_RDWR)
    for answered in (number, number, 12345):
        peer.answer(answered, (null, null))
    os.close(null)
    await turn()
    assert task.cancelled()
    assert wire.in_flight == 0 and not wire.closed
    wire.close()


async def test_a_flood_of_answers_that_no_one_waits_for_ends_the_wire(peer: Peer) -> None:
    wire = peer.wire()
    for _ in range(MOST_STRAYS):
        peer.answer(12345)
        wire._readable()
    assert not wire.closed
    peer.answer(12345)
    wire._readable()
    assert wire.closed and peer.ended == 1


async def test_a_cancelled_request_waits_no_longer_than_its_deadline(peer: Peer) -> None:
    wire = peer.wire()
    task = asyncio.create_task(wire.request("x", (), deadline_s=0.05))
    asyncio.get_running_loop().call_soon(task.cancel)  # right after it has begun: the deadline cannot pass first
    with pytest.raises(asyncio.CancelledError):
        await task
    assert wire.closed and peer.ended == 1


async def test_cancelled_and_answered_in_one_turn_leaks_nothing(peer: Peer) -> None:
    wire = peer.wire()
    task = await ask(wire)
    null = os.open("/dev/null", os.O_RDWR)
    peer.answer(peer.receive()[0]["id"], (null,))
    os.close(null)
    task.cancel()
    wire._readable()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert wire.in_flight == 0 and not wire.closed
    wire.close()


async def test_answered_and_cancelled_in_one_turn_leaks_nothing(peer: Peer) -> None:
    wire = peer.wire()
    task = await ask(wire)
    null = os.open("/dev/null", os.O_RDWR)
    peer.answer(peer.receive()[0]["id"], (null,))
    os.close(null)
    wire._readable()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    wire.close()


async def test_silence_is_the_end_at_the_deadline(peer: Peer) -> None:
    wire = peer.wire()
    with pytest.raises(ZygoteGone):
        await wire.request("x", (), deadline_s=0.02)
    assert wire.closed and peer.ended == 1


async def test_closing_it_oneself_tells_the_waiters_but_not_the_owner(peer: Peer) -> None:
    wire = peer.wire()
    task = await ask(wire)
    wire.close()
    wire.close()
    with pytest.raises(ZygoteGone):
        await task
    assert peer.ended == 0


async def test_requests_wait_for_a_busy_zygote_with_copies_of_their_descriptors(peer: Peer) -> None:
    wire = peer.wire()
    null = os.open("/dev/null", os.O_RDWR)
    tasks = [await ask(wire, fds=(null,), n=n, pad="x" * 20_000) for n in range(40)]
    os.close(null)
    assert wire._unsent
    for n in range(40):
        message, (fd,) = peer.receive()
        assert message["n"] == n
        assert os.readlink(f"/proc/self/fd/{fd}") == "/dev/null"
        os.close(fd)
        peer.answer(message["id"])
        await turn()
    await asyncio.gather(*tasks)
    wire.close()


async def test_requests_that_were_not_sent_yet_leave_nothing_when_the_wire_ends(peer: Peer) -> None:
    wire = peer.wire()
    null = os.open("/dev/null", os.O_RDWR)
    tasks = [await ask(wire, fds=(null,), pad="x" * 20_000) for _ in range(40)]
    os.close(null)
    peer.socket.close()
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(error, ZygoteGone)
    assert peer.ended == 1


async def test_a_request_that_cannot_be_sent_says_so_and_the_wire_goes_on(peer: Peer) -> None:
    wire = peer.wire()
    with pytest.raises(ZygoteRefused, match="limit"):
        await wire.request("x", (), deadline_s=5, pad="x" * protocol.CONTROL_MAX_BYTES)
    with pytest.raises(OSError) as caught:
        await wire.request("x", (99_999,), deadline_s=5)
    assert caught.value.errno == errno.EBADF
    assert wire.in_flight == 0 and not wire.closed
    task = await ask(wire)
    peer.answer(peer.receive()[0]["id"])
    await task
    wire.close()


@pytest.mark.parametrize("count", [0, 2])
async def test_a_fork_is_answered_with_one_descriptor(count: int) -> None:
    fds = [os.open("/dev/null", os.O_RDWR) for _ in range(count)]
    with pytest.raises(ZygoteGone):
        take_pidfd(fds)


class Listener:
    """The owner of a channel."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, int, bytes]] = []
        self.ends: list[Exception | None] = []

    def channel(self, sock: socket.socket) -> Channel:
        def on_frame(kind: int, number: int, body: bytes) -> None:
            self.frames.append((kind, number, body))

        limits = dict.fromkeys(protocol.FRAME_NAMES, 1000)
        channel = Channel(sock, limits=limits, turns=ReadTurns(), on_frame=on_frame, on_end=self.ends.append)
        channel.open()
        return channel


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


async def test_all_frames_of_a_sandbox_that_ended_with_something_unread_arrive(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    listener = Listener()
    channel = listener.channel(pair[0])
    channel.send(protocol.INVOKE, 1, b"unread")
    pair[1].sendall(protocol.encode_frame(protocol.READY, 1, b"first") * 2)
    pair[1].close()  # which resets the channel
    for _ in range(20):
        await turn()
    assert len(listener.frames) == 2
    assert listener.ends == [None]


async def test_frames_of_any_cut_arrive_once(pair: tuple[socket.socket, socket.socket]) -> None:
    listener = Listener()
    channel = listener.channel(pair[0])
    sent = [(protocol.RESULT, number, b"x" * number) for number in range(20)]
    stream = b"".join(protocol.encode_frame(*frame) for frame in sent)
    for start in range(0, len(stream), 7):
        pair[1].sendall(stream[start : start + 7])
        await turn()
    assert listener.frames == sent
    pair[1].close()
    await turn()
    assert listener.ends == [None]
    channel.close()


async def test_garbage_is_the_end_once(pair: tuple[socket.socket, socket.socket]) -> None:
    listener = Listener()
    channel = listener.channel(pair[0])
    pair[1].sendall(protocol.encode_frame(protocol.RESULT, 1, b"x") + b"\xff" * 1000)
    await turn()
    assert len(listener.frames) == 1
    assert [type(end) for end in listener.ends] == [ProtocolError]
    channel.send(protocol.INVOKE, 1, b"into the void")
    channel.close()
    await turn()
    assert len(listener.ends) == 1


async def test_a_large_frame_goes_out_as_the_peer_takes_it(pair: tuple[socket.socket, socket.socket]) -> None:
    listener = Listener()
    channel = listener.channel(pair[0])
    body = os.urandom(3_000_000)
    channel.send(protocol.INVOKE, 1, body)
    channel.send(protocol.INVOKE, 2, b"second")
    pair[1].setblocking(False)
    decoder = FrameDecoder(dict.fromkeys(protocol.FRAME_NAMES, 1 << 24))
    received: list[tuple[int, int, bytes]] = []
    async with asyncio.timeout(5):
        while len(received) < 2:
            try:
                decoder.feed(pair[1].recv(1 << 16))
            except BlockingIOError:
                await asyncio.sleep(0)
            while (frame := decoder.next_frame()) is not None:
                received.append(frame)
    assert received == [(protocol.INVOKE, 1, body), (protocol.INVOKE, 2, b"second")]
    channel.close()
    assert listener.ends == []


async def test_a_peer_that_leaves_with_unread_data_has_just_ended(pair: tuple[socket.socket, socket.socket]) -> None:
    listener = Listener()
    channel = listener.channel(pair[0])
    channel.send(protocol.INVOKE, 1, b"x" * 3_000_000)
    pair[1].close()
    await turn()
    channel.send(protocol.INVOKE, 2, b"too late")
    await turn()
    assert listener.ends == [None]
