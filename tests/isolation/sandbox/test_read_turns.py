"""Sandboxes that send more than a turn of the loop should take: others are heard in between, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from sockd.isolation.sandbox.channel import Channel
from sockd.isolation.sandbox.live_output import LiveOutput
from sockd.isolation.sandbox.output import Output
from sockd.isolation.sandbox.read_turns import FRAMES_PER_TURN, LONGEST_SERIES, READ_BYTES, ReadTurns
from sockd_zygote import protocol

pytestmark = pytest.mark.anyio
MANY = 3000
PIECE = protocol.encode_frame(protocol.CHUNK, 1, b"x")
DEADLINE_S = 60


class Peer:
    """A sandbox's end of a channel, and what the daemon has got through it."""

    def __init__(self, turns: ReadTurns, heard: list[str], name: str) -> None:
        ours, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self.name = name
        self.bodies: list[bytes] = []
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._heard = heard
        limits = protocol.sandbox_limits(1 << 20)
        self.channel = Channel(ours, limits=limits, turns=turns, on_frame=self._take, on_end=self.ended.set_result)
        self.channel.open()

    def _take(self, kind: int, number: int, body: bytes) -> None:
        self.bodies.append(body)
        self._heard.append(self.name)

    async def end(self) -> Exception | None:
        """Hang up, and how the daemon took it."""
        self.theirs.close()
        async with asyncio.timeout(DEADLINE_S):
            return await self.ended

    def close(self) -> None:
        self.channel.close()
        self.theirs.close()


class Room:
    """Sandboxes of one worker."""

    def __init__(self, close: ExitStack) -> None:
        self.turns = ReadTurns()
        self.heard: list[str] = []
        """The names of the peers whose frames were handled, in order."""
        self._close = close

    def peer(self, name: str) -> Peer:
        peer = Peer(self.turns, self.heard, name)
        self._close.callback(peer.close)
        return peer

    async def until(self, count: int) -> None:
        """Let the loop turn until so many frames were handled."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.heard) < count:
                await asyncio.sleep(0)


@pytest.fixture
def room() -> Iterator[Room]:
    with ExitStack() as close:
        yield Room(close)


async def test_a_storm_of_small_frames_is_handled_a_turns_worth_at_a_time(room: Room) -> None:
    storm, other = room.peer("storm"), room.peer("other")
    storm.theirs.send(PIECE * MANY)
    await room.until(1)
    other.theirs.send(protocol.encode_frame(protocol.RESULT, 1, bytes(16)))
    await room.until(2 * FRAMES_PER_TURN)
    assert "other" in room.heard[: 2 * FRAMES_PER_TURN]
    assert await storm.end() is None
    assert storm.bodies == [b"x"] * MANY


async def test_a_hundred_storms_delay_others_as_little_as_one(room: Room) -> None:
    storms, other = [room.peer(f"storm {n}") for n in range(100)], room.peer("other")
    for storm in storms:
        storm.theirs.send(PIECE * MANY)
    await room.until(100 * FRAMES_PER_TURN)  # a first turn is everybody's
    begun = len(room.heard)
    for number in range(1, 11):
        other.theirs.send(protocol.encode_frame(protocol.RESULT, number, bytes(16)))
        async with asyncio.timeout(DEADLINE_S):
            while len(other.bodies) < number:
                await asyncio.sleep(0)
    assert len(room.heard) - begun <= 10 * 2 * FRAMES_PER_TURN
    shares = [room.heard.count(storm.name) for storm in storms]
    assert max(shares) - min(shares) <= FRAMES_PER_TURN


async def test_the_loop_is_woken_seldom_by_pieces_that_come_one_by_one(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    storm = room.peer("storm")
    reads = 0
    read = Channel._read

    def counted(channel: Channel) -> int:
        nonlocal reads
        reads += 1
        return read(channel)

    monkeypatch.setattr(Channel, "_read", counted)
    turns = 0
    async with asyncio.timeout(DEADLINE_S):
        while len(storm.bodies) < 2000:
            try:
                storm.theirs.send(PIECE)
            except BlockingIOError:
                pass
            turns += 1
            await asyncio.sleep(0)
    assert reads < LONGEST_SERIES + turns / 4
    assert await storm.end() is None


async def test_large_frames_of_many_are_read_in_turns(room: Room) -> None:
    large, other = [room.peer(f"large {n}") for n in range(10)], room.peer("other")
    body = os.urandom(1 << 20)
    rest = {peer: memoryview(protocol.encode_frame(protocol.RESULT, 1, bytes(16), body)) for peer in large}
    answered = 0
    async with asyncio.timeout(DEADLINE_S):
        while rest:
            for peer, data in list(rest.items()):
                try:
                    rest[peer] = data[peer.theirs.send(data) :]
                except BlockingIOError:
                    continue
                if not rest[peer]:
                    del rest[peer]
            other.theirs.send(protocol.encode_frame(protocol.RESULT, 1, bytes(16)))
            await asyncio.sleep(0)
        while len(room.heard) < 10:
            await asyncio.sleep(0)
    answered = len(other.bodies)
    # The kernel holds some 200 KB of each, a turn takes 64 KB: so many turns it takes, and the other is heard in each.
    assert answered >= 10 * ((1 << 20) - 4 * READ_BYTES) // READ_BYTES // 2
    for peer in large:
        assert await peer.end() is None
        assert peer.bodies == [bytes(16) + body]


async def test_a_reader_that_pauses_in_a_storm_gets_the_rest_later(room: Room) -> None:
    storm = room.peer("storm")
    storm.theirs.send(b"".join(protocol.encode_frame(protocol.CHUNK, 1, b"%d" % n) for n in range(MANY)))
    await room.until(1)
    storm.channel.pause()
    held = len(storm.bodies)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(storm.bodies) == held <= FRAMES_PER_TURN
    storm.channel.resume()
    storm.channel.pause()
    storm.channel.resume()
    assert await storm.end() is None
    assert storm.bodies == [b"%d" % n for n in range(MANY)]


async def test_a_frame_over_the_limit_of_its_kind_ends_the_channel_before_its_body(room: Room) -> None:
    for kind, limit in protocol.sandbox_limits(1 << 20).items():
        peer = room.peer("long")
        peer.theirs.send(protocol.HEADER.pack(limit + 1, kind, 0, 0, 1))
        async with asyncio.timeout(DEADLINE_S):
            assert str(await peer.ended) == f"{protocol.FRAME_NAMES[kind]} of {limit + 1} bytes, limit {limit}"


async def test_of_an_answer_to_no_one_nothing_is_kept(room: Room) -> None:
    peer = room.peer("early")
    peer.channel.await_result(7)
    peer.theirs.send(protocol.encode_frame(protocol.RESULT, 7, bytes(16), b"right"))
    await room.until(1)
    peer.theirs.send(protocol.HEADER.pack(1 << 20, protocol.RESULT, 0, 0, 8) + bytes(100))
    async with asyncio.timeout(DEADLINE_S):
        assert str(await peer.ended) == "RESULT 8 instead of 7"


async def test_a_flood_of_short_lines_is_kept_whole_and_read_seldom() -> None:
    output, fd = Output.open(1 << 20)
    output.start(ReadTurns(), LiveOutput(), print)
    reads = 0
    read = output._read

    def counted() -> int:
        nonlocal reads
        reads += 1
        return read()

    output._read = counted  # type: ignore[method-assign]
    for _ in range(2000):
        os.write(fd, b"x\n")
        await asyncio.sleep(0)
    os.close(fd)
    assert reads < LONGEST_SERIES + 500
    assert output.take() == (b"x\n" * 2000, 0)
    async with asyncio.timeout(DEADLINE_S):
        while not output._is_over:
            await asyncio.sleep(0)
    output.close()
