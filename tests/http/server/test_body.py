"""Bodies in pieces, of whatever sizes they come."""

from __future__ import annotations

import asyncio
import random
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from sockd.http.server.messages.body import IN_PIECES_BYTES, JOINED_AT_ONCE_BYTES, PIECE_BYTES, SEGMENT_BYTES, Body
from sockd.linux.allocator import resident_bytes

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("seed", range(20))
async def test_it_is_what_came(seed: int) -> None:
    choose = random.Random(seed)
    sizes = (
        0,
        1,
        100,
        PIECE_BYTES - 1,
        PIECE_BYTES,
        PIECE_BYTES + 1,
        4 * PIECE_BYTES,
        SEGMENT_BYTES,
        3 * SEGMENT_BYTES,
    )
    pieces = [choose.randbytes(choose.choice(sizes)) for _ in range(choose.randrange(100))]
    body = Body(*pieces[:2])
    for piece in pieces[2:]:
        body.add(piece)
    assert body.size == sum(map(len, pieces))
    assert await body.whole() == b"".join(pieces)


async def test_megabytes_are_joined_outside_of_the_loop() -> None:
    piece = bytes(4 * PIECE_BYTES)
    body = Body(*[piece] * (JOINED_AT_ONCE_BYTES // len(piece)))
    loop, may_go = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(max_workers=1))
    busy = loop.run_in_executor(None, may_go.wait)  # or the thread may be done before it is waited for
    joining = body.whole()
    assert joining.send(None) is not None
    joining.close()
    may_go.set()
    assert await busy


async def test_who_sends_byte_by_byte_makes_no_object_of_each() -> None:
    body = Body()
    tracemalloc.start()
    try:
        for number in range(10 * PIECE_BYTES):
            body.add((number % 65536).to_bytes(2, "little"))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 3 * body.size


async def test_nothing_of_an_ended_body_stays_in_the_heap_whatever_lies_between_its_parts() -> None:
    idle_bytes, between = resident_bytes(), []
    bodies = [Body() for _ in range(20)]
    for _ in range(100):
        for body in bodies:
            body.add(bytes(50_000))
            between.append(bytes(1000))
    held_bytes = resident_bytes()
    del body, bodies
    assert held_bytes - idle_bytes > 90 << 20
    assert resident_bytes() - idle_bytes < (held_bytes - idle_bytes) // 10
    assert len(between) == 2000


@pytest.mark.parametrize(
    "size", [IN_PIECES_BYTES - 1, IN_PIECES_BYTES, IN_PIECES_BYTES + 1, IN_PIECES_BYTES + SEGMENT_BYTES]
)
async def test_a_body_around_its_limits_is_whole(size: int) -> None:
    data = random.Random(size).randbytes(size)
    for step in (1000, PIECE_BYTES, 60_000):
        body = Body()
        for start in range(0, size, step):
            body.add(data[start : start + step])
        assert (body.size, await body.whole()) == (size, data)
