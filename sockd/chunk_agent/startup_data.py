"""Startup data: the blocks of an image that its first start read, so that the next start needs no whole chunks for them.

    count 4 | per chunk: number 4, blocks 16, length 4 | per chunk: its blocks, one after the other

`blocks` is a bitmap of the chunk's 128 blocks; bit 0 is the first one. A chunk's blocks are compressed by zlib; if they have
their own length, they are stored as they are. Numbers are big-endian. The bytes are authenticated before this module reads them
(`profile.py`): what it checks are lengths, so that a bug is an error and never other data.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple, Self

from sockd.chunks.chunk import CHUNK_BYTES
from sockd.chunks.manifest import chunk_count
from sockd.plain.errors import Tampered

BLOCK_BYTES = 4096
"""Of EROFS, and a page: the kernel reads nothing smaller."""
CHUNK_BLOCKS = CHUNK_BYTES // BLOCK_BYTES
BITMAP_BYTES = CHUNK_BLOCKS // 8
MOST_INFLATED = 64
"""Chunks whose blocks are kept decompressed: 32 MB at most."""
LEVEL = 6
_COUNT = struct.Struct(">I")
_ENTRY = struct.Struct(f">I{BITMAP_BYTES}sI")


def blocks_of(offset: int, size: int) -> int:
    """The bitmap of the blocks that a part of a chunk, of at least one byte, touches."""
    first, last = offset // BLOCK_BYTES, (offset + size - 1) // BLOCK_BYTES
    return ((1 << (last - first + 1)) - 1) << first


class StartupDataWriter:
    """Collects chunks until `most_bytes` are full."""

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes - _COUNT.size
        self._entries: list[bytes] = []
        self._pieces: list[bytes] = []

    def add(self, number: int, blocks: int, plain: bytes) -> bool:
        """Take these blocks of a chunk with this plaintext. False: there is no room, for this chunk and those after it."""
        piece = b"".join(plain[at : at + size] for at, size in _runs(blocks))
        compressed = zlib.compress(piece, LEVEL)
        if len(compressed) < len(piece):
            piece = compressed
        self._left -= _ENTRY.size + len(piece)
        if self._left < 0:
            return False
        self._entries.append(_ENTRY.pack(number, blocks.to_bytes(BITMAP_BYTES, "big"), len(piece)))
        self._pieces.append(piece)
        return True

    def data(self) -> bytes:
        """What was taken; empty if nothing was."""
        return b"".join([_COUNT.pack(len(self._entries)), *self._entries, *self._pieces]) if self._entries else b""


class _Piece(NamedTuple):
    """The blocks of one chunk."""

    blocks: int
    at: int
    """In the file."""
    length: int
    """In the file."""
    plain_length: int


class StartupData:
    """Startup data in a file, from which any thread reads. Owns a mapping of the file, which goes with its last reader."""

    def __init__(self, mapped: mmap.mmap, pieces: dict[int, _Piece]) -> None:
        self._mapped = mapped
        self._pieces = pieces
        self._unread = {number: piece.blocks for number, piece in pieces.items()}
        self._inflated: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def open(cls, file: int, image_bytes: int) -> Self:
        """Args: file: sealed (F_SEAL_SHRINK). Raises: Tampered: its lengths contradict each other, or the image."""
        size = os.fstat(file).st_size
        if size < _COUNT.size:
            raise Tampered("startup data without a count")
        mapped = mmap.mmap(file, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        return cls(mapped, _parsed(mapped, image_bytes))

    def has(self, number: int) -> bool:
        """Whether it has blocks of this chunk: all that the first start has read."""
        return number in self._pieces

    def read(self, number: int, offset: int, size: int) -> bytes | None:
        """A part of a chunk; None unless all its blocks are here. Raises: Tampered: they do not have their length."""
        piece = self._pieces.get(number)
        wanted = blocks_of(offset, size)
        if piece is None or wanted & ~piece.blocks:
            return None
        before = (piece.blocks & ((1 << offset // BLOCK_BYTES) - 1)).bit_count()
        at = before * BLOCK_BYTES + offset % BLOCK_BYTES
        return self._plain(number, piece, wanted)[at : at + size]

    @property
    def inflated(self) -> int:
        """Chunks whose blocks are kept decompressed."""
        return len(self._inflated)

    def _plain(self, number: int, piece: _Piece, wanted: int) -> bytes:
        """The blocks, decompressed; kept until each was read once: then the kernel has them in its page cache."""
        plain = self._inflated.get(number)
        is_new = plain is None
        if plain is None:
            plain = _inflated(self._mapped[piece.at : piece.at + piece.length], piece.plain_length)
        with self._lock:
            self._unread[number] &= ~wanted
            if not self._unread[number]:
                self._inflated.pop(number, None)
            elif is_new:
                self._inflated[number] = plain
                if len(self._inflated) > MOST_INFLATED:
                    self._inflated.popitem(last=False)
        return plain


def _parsed(data: mmap.mmap, image_bytes: int) -> dict[int, _Piece]:
    (count,) = _COUNT.unpack_from(data)
    at = _COUNT.size + count * _ENTRY.size
    if at > len(data):
        raise Tampered("startup data is shorter than its table")
    pieces: dict[int, _Piece] = {}
    for number, bitmap, length in _ENTRY.iter_unpack(data[_COUNT.size : at]):
        blocks = int.from_bytes(bitmap, "big")
        if number >= chunk_count(image_bytes) or number in pieces:
            raise Tampered("startup data has a chunk twice, or one that the image does not have")
        chunk_bytes = min(CHUNK_BYTES, image_bytes - number * CHUNK_BYTES)
        if not blocks or (blocks.bit_length() - 1) * BLOCK_BYTES >= chunk_bytes:
            raise Tampered("startup data has blocks that the image does not have")
        missing = max(blocks.bit_length() * BLOCK_BYTES - chunk_bytes, 0)
        plain_length = blocks.bit_count() * BLOCK_BYTES - missing
        if length > plain_length:
            raise Tampered("startup data has blocks of a wrong length")
        pieces[number] = _Piece(blocks, at, length, plain_length)
        at += length
    if at != len(data):
        raise Tampered("startup data has another length than its table says")
    return pieces


def _inflated(data: bytes, plain_length: int) -> bytes:
    if len(data) == plain_length:
        return data
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, plain_length + 1)
    except zlib.error as error:
        raise Tampered(f"startup data cannot be decompressed: {error}") from None
    if len(plain) != plain_length or not inflater.eof or inflater.unused_data:
        raise Tampered("startup data has blocks of a wrong length")
    return plain


def _runs(blocks: int) -> Iterator[tuple[int, int]]:
    """(offset, size) of each run of blocks in a chunk."""
    at = 0
    while blocks:
        gap = (blocks & -blocks).bit_length() - 1
        blocks >>= gap
        length = (~blocks & (blocks + 1)).bit_length() - 1
        yield (at + gap) * BLOCK_BYTES, length * BLOCK_BYTES
        blocks >>= length
        at += gap + length
