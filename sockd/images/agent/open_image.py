"""One image that is being served: its chunks, which of them and of their blocks were read, and what a sequential reader will
want next.

Does no IO. All methods may be called from several threads; a race costs a prefetch, or a place in the order.
"""

from __future__ import annotations

from typing import NamedTuple

from sockd.images.chunks.chunk import CHUNK_BYTES, Chunk
from sockd.images.profiles.startup_data import StartupData, blocks_of

MOST_AHEAD = 8
"""Chunks that are prefetched for a sequential reader, at most."""
MOST_RUNS = 64
"""Sequential readers that are followed at a time."""
MOST_RECORDED = 4096
"""Chunks whose reads are kept: 2 GB of them."""


class Span(NamedTuple):
    """The part of a read that one chunk has."""

    number: int
    """The number of the chunk."""
    offset: int
    """In the chunk."""
    size: int


class Contents(NamedTuple):
    """The chunks of an image, and the root of the store that has them."""

    root: str
    chunks: tuple[Chunk | None, ...]


class OpenImage:
    """An image with its chunks."""

    def __init__(
        self, image: str, nodeid: int, size_bytes: int, contents: Contents, *, has_profile: bool = False
    ) -> None:
        """Args: has_profile: what a start reads is known, and comes without reading ahead."""
        self.image = image
        self.nodeid = nodeid
        self.size_bytes = size_bytes
        self.contents = contents
        """May be replaced by another root's, with the same plaintext: a read takes it once."""
        self.blocks: dict[int, int] = {}
        """Bitmaps of the blocks that were read, by chunk, of at most MOST_RECORDED chunks, in the order of their first read."""
        self.startup: StartupData | None = None
        """While the image starts: what an earlier start has read."""
        self._used = bytearray(len(contents.chunks))
        self._runs: dict[int, int] = {}
        self._has_profile = has_profile

    def end_startup(self) -> None:
        """Its start is over: nothing is read from the startup data any more. Again is nothing."""
        startup, self.startup = self.startup, None
        if startup is not None:
            startup.end()

    def spans(self, offset: int, size: int) -> list[Span]:
        """What a read consists of, one span mostly; shorter, or nothing, at the end of the image."""
        end = min(offset + size, self.size_bytes)
        spans = []
        while offset < end:
            number, within = divmod(offset, CHUNK_BYTES)
            length = min(CHUNK_BYTES - within, end - offset)
            spans.append(Span(number, within, length))
            offset += length
        return spans

    @property
    def order(self) -> tuple[int, ...]:
        """The chunks in the order of their first read."""
        return tuple(self.blocks)

    def is_used(self, index: int) -> bool:
        """Whether a read has needed this chunk, and not startup data alone."""
        return bool(self._used[index])

    def record(self, number: int, offset: int, size: int) -> None:
        """Record that these blocks of a chunk were read, wherever they came from."""
        before = self.blocks.get(number, 0)
        if before or len(self.blocks) < MOST_RECORDED:
            self.blocks[number] = before | blocks_of(offset, size)

    def use(self, index: int) -> range:
        """Record the first use of a chunk. Returns those after it that should be prefetched."""
        self._used[index] = 1
        run = self._runs.pop(index, 0) + 1
        self._runs[index + 1] = run
        if len(self._runs) > MOST_RUNS:
            self._runs.pop(next(iter(self._runs)), None)
        return range(index + 1, min(index + 1 + ahead(run, self._has_profile), len(self._used)))


def ahead(run: int, has_profile: bool) -> int:
    """POLICY: how many chunks are prefetched for a reader that has used `run` chunks in order, at most MOST_AHEAD.

    2, 4, 8, as a start reads most of a shared object (docs/experiments/0013-reading-ahead-in-images.md). If its profile has
    brought what a start reads: 0, 1, 2, 4, 8, as what it reads besides is less likely to be followed by its neighbours."""
    if has_profile:
        return int(min(1 << run - 2, MOST_AHEAD)) if run > 1 else 0
    return int(min(1 << run, MOST_AHEAD))
