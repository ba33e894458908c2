"""Startup data: what was put in is read, nothing else is, and what does not fit together is refused."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.base.errors import Tampered
from sockd.images.chunks.chunk import CHUNK_BYTES
from sockd.images.profiles import startup_data
from sockd.images.profiles.startup_data import (
    BLOCK_BYTES,
    CHUNK_BLOCKS,
    NO_CHUNK,
    Places,
    StartupData,
    StartupDataWriter,
    blocks_of,
    move,
)
from sockd.linux.memory_file import memory_file

LAST_BYTES = 10 * BLOCK_BYTES + 100
IMAGE_BYTES = 3 * CHUNK_BYTES + LAST_BYTES
NOISE, OTHER = (random.Random(seed).randbytes(CHUNK_BYTES) for seed in (1, 2))
PLAIN = {0: OTHER, 1: NOISE, 2: bytes(CHUNK_BYTES), 3: NOISE[:LAST_BYTES]}
TABLE = struct.Struct(">II16s")


def opened(data: bytes, image_bytes: int = IMAGE_BYTES) -> StartupData:
    fd = memory_file("test", data)
    try:
        return StartupData.open(fd, image_bytes, len(data))
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


def moved(data: bytes, numbers: dict[int, int], size_bytes: int = IMAGE_BYTES) -> bytes:
    """Return the data as it is for another image."""
    changed = bytearray(data)
    move(memoryview(changed), Places(size_bytes, numbers))
    return bytes(changed)


BITMAPS = st.integers(1, (1 << CHUNK_BLOCKS) - 1)


@given(
    st.dictionaries(st.integers(0, 2), BITMAPS, min_size=1),
    st.booleans(),
    st.dictionaries(st.integers(0, 2), st.integers(0, 9)).filter(
        lambda places: len(set(places.values())) == len(places)
    ),
    st.integers(0, 9),
    st.integers(0, CHUNK_BYTES - BLOCK_BYTES),
    st.integers(1, BLOCK_BYTES),
)
def test_startup_data_of_another_image_has_only_the_chunks_that_both_have(
    blocks: dict[int, int], has_end: bool, places: dict[int, int], number: int, offset: int, size: int
) -> None:
    if has_end:
        blocks |= {3: whole(3)}  # the end of the one image, which the other one does not have
    found = opened(moved(packed(blocks), places), 10 * CHUNK_BYTES)
    assert [found.has(each) for each in range(10)] == [
        any(places.get(old) == each for old in blocks) for each in range(10)
    ]
    old = next((old for old, place in places.items() if place == number), None)
    piece = found.read(number, offset, size)
    if old is None or blocks_of(offset, size) & ~blocks.get(old, 0):
        assert piece is None
    else:
        assert piece == PLAIN[old][offset : offset + size]


def test_the_table_of_another_image_s_startup_data_must_be_there_and_fit_that_image() -> None:
    good = packed({0: 7, 3: whole(3)})
    table = 4 + 2 * 20
    for data, size_bytes in (
        (good[:3], IMAGE_BYTES),
        (good[: table - 1], IMAGE_BYTES),
        (good, 3 * CHUNK_BYTES),
        (good, IMAGE_BYTES - LAST_BYTES + BLOCK_BYTES),
    ):
        with pytest.raises(Tampered):
            moved(data, {}, size_bytes)
    assert moved(good[:table], {}) == moved(good, {})[:table]


def test_the_blocks_of_a_chunk_are_handed_over_as_the_writer_takes_them() -> None:
    blocks = {3: whole(3), 0: 0b1101 << 9 | 1}
    data = packed(blocks)
    found, writer = opened(data), StartupDataWriter(1 << 20)
    for number, bitmap in blocks.items():
        piece = found.piece(number, bitmap)
        assert piece is not None and writer.add_piece(number, bitmap, piece)
    assert writer.data() == data
    assert found.piece(0, 1 << 11) == PLAIN[0][11 * BLOCK_BYTES : 12 * BLOCK_BYTES]
    assert found.piece(3, 1 << 10) == PLAIN[3][-100:], "the last block is short"
    assert found.piece(0, 0b11) is None and found.piece(1, 1) is None
    found.fill(len(data) - 1)
    assert found.piece(3, 1) == PLAIN[3][:BLOCK_BYTES] and found.piece(0, 1) is None


def test_the_end_of_the_image_is_read_although_its_last_block_is_short() -> None:
    data = opened(packed({3: blocks_of(BLOCK_BYTES, BLOCK_BYTES) | blocks_of(9 * BLOCK_BYTES, BLOCK_BYTES + 100)}))
    assert data.read(3, 10 * BLOCK_BYTES, 100) == PLAIN[3][-100:]
    assert data.read(3, BLOCK_BYTES, BLOCK_BYTES) == PLAIN[3][BLOCK_BYTES : 2 * BLOCK_BYTES]


def test_startup_data_ends_before_the_first_chunk_that_has_no_room_in_it() -> None:
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
    yield entry(number=NO_CHUNK, blocks=4095)
    yield entry(number=NO_CHUNK, blocks=1 << 127)


@pytest.mark.parametrize("data", list(malformed()))
def test_lengths_that_contradict_each_other_are_refused(data: bytes) -> None:
    with pytest.raises(Tampered):
        opened(data)


def test_a_table_and_pieces_that_fit_are_accepted() -> None:
    """The refusals are of what was changed."""
    assert opened(entry()).read(0, 0, 4096) == bytes(4096)


def test_a_read_waits_for_what_is_not_there_yet() -> None:
    data = packed({0: whole(0), 1: whole(1)})
    fd = memory_file("test", data)
    try:
        found = StartupData.open(fd, IMAGE_BYTES, len(data) - CHUNK_BYTES)
    finally:
        os.close(fd)
    assert found.read(0, 0, BLOCK_BYTES) == PLAIN[0][:BLOCK_BYTES]
    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(found.read, 1, at, BLOCK_BYTES) for at in (0, CHUNK_BYTES - BLOCK_BYTES)]
        found.fill(len(data) - BLOCK_BYTES)
        assert readers[0].result() == PLAIN[1][:BLOCK_BYTES] and not readers[1].done()
        found.fill(len(data))
        assert readers[1].result() == PLAIN[1][-BLOCK_BYTES:]


def test_no_one_waits_for_startup_data_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    data = packed({0: whole(0)})
    fd = memory_file("test", data)
    try:
        found = StartupData.open(fd, IMAGE_BYTES, len(data) - 1)
    finally:
        os.close(fd)
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(found.read, 0, CHUNK_BYTES - BLOCK_BYTES, BLOCK_BYTES)
        found.end()
        assert reader.result() is None
    monkeypatch.setattr(startup_data, "WAIT_S", 0.01)
    late = opened(data)
    late.fill(len(data) - 1)
    assert late.read(0, CHUNK_BYTES - BLOCK_BYTES, BLOCK_BYTES) is None
