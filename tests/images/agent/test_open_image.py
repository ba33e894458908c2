"""Reads as parts of chunks, the order of first uses, and what is prefetched for sequential readers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sockd.images.agent.open_image import MOST_AHEAD, MOST_RUNS, Contents, OpenImage, ahead
from sockd.images.chunks.chunk import CHUNK_BYTES, Chunk

CHUNK = Chunk(b"n" * 32, b"k" * 32)


def an_image(size_bytes: int) -> OpenImage:
    return OpenImage("image", 2, size_bytes, Contents("r1", (CHUNK,) * -(-size_bytes // CHUNK_BYTES)))


@given(st.integers(0, 3 * CHUNK_BYTES), st.integers(0, 4 * CHUNK_BYTES), st.integers(0, 2 * CHUNK_BYTES))
def test_spans_are_the_bytes_of_a_read_in_order_as_far_as_the_image_has_them(
    size_bytes: int, offset: int, size: int
) -> None:
    found = [(span.number * CHUNK_BYTES + span.offset, span.size) for span in an_image(size_bytes).spans(offset, size)]
    at = offset
    for start, length in found:
        assert start == at and 0 < length <= CHUNK_BYTES - start % CHUNK_BYTES
        at += length
    assert at == max(offset, min(offset + size, size_bytes))


def test_the_order_of_first_reads_is_kept_with_the_blocks_that_were_read() -> None:
    image = an_image(10 * CHUNK_BYTES)
    for number, block in ((4, 0), (0, 7), (9, 1), (4, 2)):
        image.record(number, 4096 * block, 4096)
    assert image.order == (4, 0, 9)
    assert image.blocks == {4: 0b101, 0: 1 << 7, 9: 0b10}
    assert not any(image.is_used(number) for number in range(10)), "startup data may have been read"
    for number in (4, 0, 9):
        image.use(number)
    assert [number for number in range(10) if image.is_used(number)] == [0, 4, 9]


def test_a_sequential_reader_gets_more_chunks_ahead_than_others() -> None:
    image = an_image(100 * CHUNK_BYTES)
    assert [len(image.use(number)) for number in (10, 11, 50, 12, 13)] == [2, 4, 2, MOST_AHEAD, 8]
    assert [ahead(run, has_profile=True) for run in (1, 2, 3, 4, 5, 6)] == [0, 1, 2, 4, MOST_AHEAD, 8]
    assert ahead(1000, True) == ahead(1000, False) == MOST_AHEAD


def test_nothing_is_prefetched_beyond_the_end() -> None:
    image = an_image(4 * CHUNK_BYTES)
    assert [list(image.use(number)) for number in range(4)] == [[1, 2], [2, 3], [3], []]


def test_a_bounded_number_of_readers_is_followed() -> None:
    image = an_image(1000 * CHUNK_BYTES)
    for number in range(0, 1000, 5):
        image.use(number)
    assert len(image._runs) <= MOST_RUNS
