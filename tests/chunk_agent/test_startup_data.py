"""Startup data: what was put in is read, nothing else is, and what does not fit together is refused."""

from __future__ import annotations

import os
import random
import struct
import zlib
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.chunk_agent import startup_data
from sockd.chunk_agent.memory_file import memory_file
from sockd.chunk_agent.startup_data import (
    BLOCK_BYTES,
    CHUNK_BLOCKS,
    StartupData,
    StartupDataWriter,
    blocks_of,
)
from sockd.chunks.chunk import CHUNK_BYTES
from sockd.plain.errors import Tampered

LAST_BYTES = 10 * BLOCK_BYTES + 100
IMAGE_BYTES = 3 * CHUNK_BYTES + LAST_BYTES
TEXT = b"".join(b"line %d of a file that can be compressed\n" % number for number in range(20_000))[:CHUNK_BYTES]
NOISE = random.Random(1).randbytes(CHUNK_BYTES)
PLAIN = {0: TEXT, 1: NOISE, 2: bytes(CHUNK_BYTES), 3: NOISE[:LAST_BYTES]}
TABLE = struct.Struct(">II16sI")


def opened(data: bytes, image_bytes: int = IMAGE_BYTES) -> StartupData:
    fd = memory_file("test", data)
    try:
        return StartupData.open(fd, image_bytes)
    finally:
        os.close(fd)


def packed(blocks: dict[int, int]) -> bytes:
    writer = StartupDataWriter(64 << 20)
    assert all(writer.add(number, bitmap, PLAIN[number]) for number, bitmap in blocks.items())
    return writer.data()


def whole(number: int) -> int:
    """All blocks of a chunk."""
    return blocks_of(0, len(PLAIN[number]))


@given(
    st.dictionaries(st.integers(0, 2), st.integers(1, (1 << CHUNK_BLOCKS) - 1), min_size=1),
    st.integers(0, 3),
    st.integers(0, CHUNK_BYTES - 1),
    st.integers(1, 12 * BLOCK_BYTES),
)
def test_a_read_of_recorded_blocks_gives_the_image_s_bytes_and_any_other_nothing(
    blocks: dict[int, int], number: int, offset: int, size: int
) -> None:
    size = min(size, CHUNK_BYTES - offset)
    wanted = blocks_of(offset, size)
    found = opened(packed(blocks)).read(number, offset, size)
    if wanted & ~blocks.get(number, 0):
        assert found is None
    else:
        assert found == PLAIN[number][offset : offset + size]


def test_the_end_of_the_image_is_read_although_its_last_block_is_short() -> None:
    data = opened(packed({3: blocks_of(BLOCK_BYTES, BLOCK_BYTES) | blocks_of(9 * BLOCK_BYTES, BLOCK_BYTES + 100)}))
    assert data.read(3, 10 * BLOCK_BYTES, 100) == PLAIN[3][-100:]
    assert data.read(3, BLOCK_BYTES, BLOCK_BYTES) == PLAIN[3][BLOCK_BYTES : 2 * BLOCK_BYTES]


def test_blocks_that_do_not_compress_are_stored_as_they_are() -> None:
    assert len(packed({1: whole(1)})) == 4 + 24 + CHUNK_BYTES
    assert len(packed({0: whole(0)})) < CHUNK_BYTES // 4


def test_startup_data_stays_below_its_bound_and_takes_no_chunk_after_the_first_without_room() -> None:
    writer = StartupDataWriter(CHUNK_BYTES + 4 + 24 + 10)
    assert writer.add(1, whole(1), NOISE) and not writer.add(3, whole(3), PLAIN[3])
    assert not writer.add(2, 1, PLAIN[2])
    assert len(writer.data()) == CHUNK_BYTES + 4 + 24
    assert not opened(writer.data()).has(3)


def test_without_blocks_there_is_no_startup_data() -> None:
    assert StartupDataWriter(1 << 20).data() == b""


def test_blocks_that_were_all_read_are_not_kept_decompressed_and_can_be_read_again() -> None:
    data = opened(packed({0: 0b111, 1: 1}))
    assert data.read(0, 0, 2 * BLOCK_BYTES) == TEXT[: 2 * BLOCK_BYTES]
    assert data.inflated == 1
    for _ in range(2):
        assert data.read(0, 2 * BLOCK_BYTES, BLOCK_BYTES) == TEXT[2 * BLOCK_BYTES : 3 * BLOCK_BYTES]
        assert data.inflated == 0


def test_a_bounded_number_of_chunks_is_kept_decompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_data, "MOST_INFLATED", 2)
    data = opened(packed({0: 3, 1: 3, 2: 3}))
    for _ in range(2):
        for number in range(3):
            assert data.read(number, 0, BLOCK_BYTES) == PLAIN[number][:BLOCK_BYTES]
            assert data.inflated <= 2


def entry(count: int = 1, number: int = 0, blocks: int = 1, length: int = 4096, piece: bytes = bytes(4096)) -> bytes:
    return TABLE.pack(count, number, blocks.to_bytes(16, "big"), length) + piece


def malformed() -> Iterator[bytes]:
    good = packed({0: 7, 1: 3})
    yield from (good[:size] for size in (0, 3, 4, 27, 28, 51, len(good) - 1))
    yield good + b"\0"
    yield entry(count=0)
    yield entry(count=2)
    yield entry(count=1 << 31)
    yield entry(number=4)
    yield entry(blocks=0)
    yield entry(number=3, blocks=1 << 11)
    yield entry(length=4095)
    yield entry(length=4097, piece=bytes(4097))
    yield entry(length=1 << 31)
    yield TABLE.pack(2, 0, (1).to_bytes(16, "big"), 1) + TABLE.pack(0, 0, (1).to_bytes(16, "big"), 1)[4:] + b"ab"


@pytest.mark.parametrize("data", list(malformed()))
def test_lengths_that_contradict_each_other_are_refused(data: bytes) -> None:
    with pytest.raises(Tampered):
        opened(data)


def test_a_table_and_pieces_that_fit_are_accepted() -> None:
    """The refusals are of what was changed."""
    assert opened(entry()).read(0, 0, 4096) == bytes(4096)


@pytest.mark.parametrize(
    "change",
    [
        lambda piece: bytes(len(piece)),
        lambda piece: piece[:-1],
        lambda piece: piece + b"\0",
        lambda piece: zlib.compress(bytes(BLOCK_BYTES)),
        lambda piece: zlib.compress(bytes(200 << 20)),
    ],
)
def test_blocks_that_do_not_decompress_to_their_length_are_refused(change: Callable[[bytes], bytes]) -> None:
    piece = change(packed({0: whole(0)})[28:])
    data = opened(entry(blocks=whole(0), length=len(piece), piece=piece))
    with pytest.raises(Tampered):
        data.read(0, 0, 1)
