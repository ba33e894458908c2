"""Bodies in pieces, of whatever sizes they come."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from sockd.http.wire.body import JOINED_AT_ONCE_BYTES, PIECE_BYTES, Body

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("seed", range(20))
async def test_it_is_what_came(seed: int) -> None:
    choose = random.Random(seed)
    sizes = (0, 1, 100, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 4 * PIECE_BYTES)
    pieces = [choose.randbytes(choose.choice(sizes)) for _ in range(choose.randrange(100))]
    body = Body(*pieces[:2])
    for piece in pieces[2:]:
        body.add(piece)
    assert body.size == sum(map(len, pieces))
    assert await body.whole() == b"".join(pieces)


async def test_megabytes_are_joined_outside_of_the_loop() -> None:
    piece = bytes(4 * PIECE_BYTES)
    body = Body(*[piece] * (JOINED_AT_ONCE_BYTES // len(piece)))
    joining = body.whole()
    assert joining.send(None) is not None
    joining.close()


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
