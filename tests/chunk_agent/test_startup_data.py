"""Startup data: what was put in is read, nothing else is, and what does not fit together is refused."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
NOISE, OTHER = (random.Random(seed).randbytes(CHUNK_BYTES) for seed in (1, 2))
PLAIN = {0: OTHER, 1: NOISE, 2: bytes(CHUNK_BYTES), 3: NOISE[:LAST_BYTES]}
TABLE = struct.Struct(">II16s")


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


def test_startup_data_stays_below_its_bound_and_takes_no_chunk_after_the_first_without_room() -> None:
    writer = StartupDataWriter(CHUNK_BYTES + 4 + 20 + 10)
    assert writer.add(1, whole(1), NOISE) and not writer.add(3, whole(3), PLAIN[3])
    assert not writer.add(2, 1, PLAIN[2])
    assert len(writer.data()) == CHUNK_BYTES + 4 + 20
    assert not opened(writer.data()).has(3)


def test_without_blocks_there_is_no_startup_data() -> None:
    assert StartupDataWriter(1 << 20).data() == b""


def entry(count: int = 1, number: int = 0, blocks: int = 1, piece: bytes = bytes(4096)) -> bytes:
    return TABLE.pack(count, number, blocks.to_bytes(16, "big")) + piece


def malformed() -> Iterator[bytes]:
    good = packed({0: 7, 1: 3})
    yield from (good[:size] for size in (0, 3, 4, 23, 24, 43, len(good) - 1))
    yield good + b"\0"
    yield entry(count=0)
    yield entry(count=2)
    yield entry(count=1 << 31)
    yield entry(number=4)
    yield entry(blocks=0, piece=b"")
    yield entry(blocks=3)
    yield entry(number=3, blocks=1 << 10)  # of 100 bytes
    yield entry(number=3, blocks=1 << 11)
    yield entry(piece=bytes(4095))
    yield entry(piece=bytes(4097))
    yield TABLE.pack(2, 0, (1).to_bytes(16, "big")) + entry()[4:] + bytes(4096)  # twice


@pytest.mark.parametrize("data", list(malformed()))
def test_lengths_that_contradict_each_other_are_refused(data: bytes) -> None:
    with pytest.raises(Tampered):
        opened(data)


def test_a_table_and_pieces_that_fit_are_accepted() -> None:
    """The refusals are of what was changed."""
    assert opened(entry()).read(0, 0, 4096) == bytes(4096)
