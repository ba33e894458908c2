"""An answer that comes piece by piece: pieces of one turn are joined, those of two are not, and few are held."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from sockd.base.errors import ResponseTooLarge
from sockd.base.invoke_request import Sink
from sockd.isolation.sandbox.stream import HELD_BYTES, JOINED_BYTES, BoundedSink, Flow, Head, Stream

pytestmark = pytest.mark.anyio


class Client(Sink):
    """A client that takes what comes, unless the test makes it wait."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Nothing to keep."""

    async def chunk(self, data: bytes) -> None:
        await self.reads.wait()
        self.chunks.append(data)


def stream_to(client: Client, said: list[str], most: int = 1 << 30) -> Stream:
    flow = Flow(lambda: said.append("pause"), lambda: said.append("resume"), lambda: said.append("stop"))
    return Stream(BoundedSink(client, most), Head(200, []), flow)


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_pieces_of_one_turn_are_one_and_each_of_its_own_turn_is_passed_on_at_once() -> None:
    client, said = Client(), list[str]()
    stream = stream_to(client, said)
    for _ in range(3):
        stream.push(b"a")
        stream.push(b"b")
        await turn()
    assert client.chunks == [b"ab", b"ab", b"ab"]
    stream.push(b"c")
    stream.push(b"d")
    await stream.passed_on(failed=False)
    assert client.chunks[3:] == [b"cd"]


async def test_joined_pieces_are_never_longer_than_one_may_be() -> None:
    client, said = Client(), list[str]()
    stream = stream_to(client, said)
    sent = [b"%d" % (size % 10) * size for size in (1, JOINED_BYTES - 1, 1, JOINED_BYTES, 5, 7, 30_000, 40_000)]
    for piece in sent:
        stream.push(piece)
    await stream.passed_on(failed=False)
    assert b"".join(client.chunks) == b"".join(sent)
    assert max(map(len, client.chunks)) == JOINED_BYTES


async def test_pieces_that_no_one_takes_cost_what_they_weigh_however_small() -> None:
    client, said = Client(), list[str]()
    client.reads.clear()
    stream = stream_to(client, said)
    await turn()
    tracemalloc.start()
    try:
        for number in range(HELD_BYTES // 2 + 1):
            stream.push((number % 60_000).to_bytes(2))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert said == ["pause"]
    assert peak < 3 * HELD_BYTES
    client.reads.set()
    await stream.passed_on(failed=False)
    assert len(b"".join(client.chunks)) == HELD_BYTES + 2


async def test_the_sum_of_all_pieces_has_a_limit() -> None:
    client, said = Client(), list[str]()
    stream = stream_to(client, said, most=10)
    for _ in range(5):
        stream.push(b"ab")
    with pytest.raises(ResponseTooLarge):
        stream.push(b"c")
    stream.cut()
