"""Startup data: the blocks of an image that its first start read, so that the next start needs no whole chunks for them.

    count 4 | per chunk: number 4, blocks 16 | per chunk: its blocks, one after the other

`blocks` is a bitmap of the chunk's 128 blocks; bit 0 is the first one. Numbers are big-endian. Blocks are not compressed: to
decompress them takes longer than to fetch them (ADR 59). Of startup data that another image's start has read, a chunk that this
image does not have is NO_CHUNK, with the bytes of its blocks in place of a bitmap: they are never read (`move`).

The bytes are authenticated before this module reads them (`segments.py`): what it checks are lengths, so that a bug is an error
and never other data.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

from sockd.base.errors import Tampered
from sockd.images.chunks.chunk import CHUNK_BYTES
from sockd.images.chunks.manifest import chunk_count

BLOCK_BYTES = 4096
"""The size of a block of EROFS, and of a page: the kernel reads nothing smaller."""
CHUNK_BLOCKS = CHUNK_BYTES // BLOCK_BYTES
BITMAP_BYTES = CHUNK_BLOCKS // 8
NO_CHUNK = (1 << 32) - 1
WAIT_S = 1.0
"""How long a read waits for startup data that is still being decrypted, before it takes the chunk instead."""
_COUNT = struct.Struct(">I")
_ENTRY = struct.Struct(f">I{BITMAP_BYTES}s")


def blocks_of(offset: int, size: int) -> int:
    """The bitmap of the blocks that a part of a chunk, of at least one byte, touches."""
    first, last = offset // BLOCK_BYTES, (offset + size - 1) // BLOCK_BYTES
    return ((1 << (last - first + 1)) - 1) << first


class Places(NamedTuple):
    """Where the chunks of an image are in another one."""

    size_bytes: int
    """The size of the image, in bytes."""
    numbers: Mapping[int, int]
    """The chunks that the other image has, too, with the same plaintext: their numbers there, by their numbers in the
    image."""


def move(data: memoryview, places: Places) -> None:
    """Make startup data of an image that of another one, in its place: the blocks stay where they are.

    Args: data: as much of it as is there. Raises: Tampered: the table is not in it, or it is not the image's."""
    if len(data) < _COUNT.size:
        raise Tampered("startup data without a count")
    (count,) = _COUNT.unpack_from(data)
    if _COUNT.size + count * _ENTRY.size > len(data):
        raise Tampered("startup data is shorter than its table")
    for at in range(_COUNT.size, _COUNT.size + count * _ENTRY.size, _ENTRY.size):
        number, bitmap = _ENTRY.unpack_from(data, at)
        place = places.numbers.get(number)
        if place is None:
            size = _piece_bytes(number, int.from_bytes(bitmap, "big"), places.size_bytes)
            _ENTRY.pack_into(data, at, NO_CHUNK, size.to_bytes(BITMAP_BYTES, "big"))
        else:
            _ENTRY.pack_into(data, at, place, bitmap)


class StartupDataWriter:
    """Collects chunks until `most_bytes` are full."""

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes - _COUNT.size
        self._entries: list[bytes] = []
        self._pieces: list[bytes] = []

    def add(self, number: int, blocks: int, plain: bytes) -> bool:
        """Take these blocks of a chunk with this plaintext. False: there is no room, for this chunk and those after it."""
        return self.add_piece(number, blocks, b"".join(plain[at : at + size] for at, size in _runs(blocks)))

    def add_piece(self, number: int, blocks: int, piece: bytes) -> bool:
        """As `add`. Args: piece: the blocks, one after the other."""
        self._left -= _ENTRY.size + len(piece)
        if self._left < 0:
            return False
        self._entries.append(_ENTRY.pack(number, blocks.to_bytes(BITMAP_BYTES, "big")))
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
    end: int


class StartupData:
    """Startup data in a file, from which any thread reads. Owns a mapping of the file, which goes with its last reader."""

    def __init__(self, mapped: mmap.mmap, pieces: dict[int, _Piece], filled: int) -> None:
        self._mapped = mapped
        self._pieces = pieces
        self._filled = filled
        self._is_over = self._is_late = False
        self._changed = threading.Condition()

    @classmethod
    def open(cls, file: int, image_bytes: int, filled: int) -> Self:
        """Args: file: sealed (F_SEAL_SHRINK); filled: so many bytes of it are there; the table must be.

        Raises: Tampered: its lengths contradict each other, or the image."""
        size = os.fstat(file).st_size
        if size < _COUNT.size:
            raise Tampered("startup data without a count")
        mapped = mmap.mmap(file, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        return cls(mapped, _parsed(mapped, image_bytes), filled)

    def fill(self, filled: int) -> None:
        """So many bytes are there now."""
        with self._changed:
            self._filled, self._is_late = filled, False
            self._changed.notify_all()

    def end(self) -> None:
        """No more will be there: end all waits for more."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def has(self, number: int) -> bool:
        """Whether it has blocks of this chunk: all that the first start has read."""
        return number in self._pieces

    def read(self, number: int, offset: int, size: int) -> bytes | None:
        """A part of a chunk, within the image; None unless all its blocks are here, at most WAIT_S later."""
        piece = self._pieces.get(number)
        if piece is None or blocks_of(offset, size) & ~piece.blocks:
            return None
        at = _place(piece, offset)
        if at + size > self._filled and not self._waited(at + size):
            return None
        return self._mapped[at : at + size]

    def piece(self, number: int, blocks: int) -> bytes | None:
        """Blocks of a chunk, one after the other; None unless all are here, and there already."""
        piece = self._pieces.get(number)
        if piece is None or blocks & ~piece.blocks or piece.end > self._filled:
            return None
        places = ((_place(piece, offset), size) for offset, size in _runs(blocks))
        return b"".join(self._mapped[at : min(at + size, piece.end)] for at, size in places)

    def _waited(self, end: int) -> bool:
        """Whether so many bytes are there, after waiting for them."""
        with self._changed:
            if not self._is_late:  # after one read that has waited in vain, until there is more
                self._is_late = not self._changed.wait_for(lambda: self._is_over or end <= self._filled, WAIT_S)
            return end <= self._filled


def _parsed(data: mmap.mmap, image_bytes: int) -> dict[int, _Piece]:
    (count,) = _COUNT.unpack_from(data)
    at = _COUNT.size + count * _ENTRY.size
    if at > len(data):
        raise Tampered("startup data is shorter than its table")
    pieces: dict[int, _Piece] = {}
    for number, bitmap in _ENTRY.iter_unpack(data[_COUNT.size : at]):
        blocks = int.from_bytes(bitmap, "big")
        if number == NO_CHUNK:
            at += blocks
            continue
        if number in pieces:
            raise Tampered("startup data has a chunk twice")
        size = _piece_bytes(number, blocks, image_bytes)
        pieces[number] = _Piece(blocks, at, at + size)
        at += size
    if at != len(data):
        raise Tampered("startup data has another length than its table says")
    return pieces


def _piece_bytes(number: int, blocks: int, image_bytes: int) -> int:
    """Return the number of bytes of these blocks of a chunk. Raises: Tampered: the image does not have them."""
    if number >= chunk_count(image_bytes):
        raise Tampered("startup data has a chunk that the image does not have")
    chunk_bytes = min(CHUNK_BYTES, image_bytes - number * CHUNK_BYTES)
    if not blocks or (blocks.bit_length() - 1) * BLOCK_BYTES >= chunk_bytes:
        raise Tampered("startup data has blocks that the image does not have")
    beyond_end = max(blocks.bit_length() * BLOCK_BYTES - chunk_bytes, 0)
    return blocks.bit_count() * BLOCK_BYTES - beyond_end


def _place(piece: _Piece, offset: int) -> int:
    """Where the file has a byte of a chunk, whose block is in its piece."""
    before = (piece.blocks & ((1 << offset // BLOCK_BYTES) - 1)).bit_count()
    return piece.at + before * BLOCK_BYTES + offset % BLOCK_BYTES


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
