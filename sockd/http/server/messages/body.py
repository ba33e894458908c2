"""A request's body while it arrives: pieces, joined once at the end.

A growing buffer would be copied at each step, which blocks the event loop 3 ms for some megabytes. A body of more than
`IN_PIECES_BYTES` is copied to segments that are mappings of their own and return to the kernel with the body. Pieces of a read's
size lie in the heap among small blocks, which keep the heap's pages when the body has ended.

Owns the bytes. Knows nothing of limits.
"""

from __future__ import annotations

import asyncio
import mmap

PIECE_BYTES = 16 * 1024
"""Smaller pieces are joined on arrival, so that a client that sends single bytes does not create an object for each."""
IN_PIECES_BYTES = 128 * 1024
SEGMENT_BYTES = 1 << 20
"""The kernel gives a segment its pages as it is written to, so the last one takes no more than is in it."""
JOINED_AT_ONCE_BYTES = 1 << 20
"""More than that is joined in a thread, and from here on Python does it without its lock."""


class Body:
    """`add` what has come, then `whole`, once."""

    __slots__ = ("_is_in_segments", "_pieces", "_room", "_small", "size")

    def __init__(self, *pieces: bytes) -> None:
        self._pieces: list[bytes | mmap.mmap] = []
        self._small = bytearray()
        """What is less than a piece yet."""
        self._room = memoryview(b"")
        """The part of the last segment that is not written to yet."""
        self._is_in_segments = False
        self.size = 0
        for piece in pieces:
            self.add(piece)

    def add(self, data: bytes) -> None:
        """The next part of it."""
        self.size += len(data)
        if self.size > IN_PIECES_BYTES:
            if not self._is_in_segments:
                self._is_in_segments = True
                data = self._taken_out() + data
            self._add_to_segments(data)
            return
        if len(data) < PIECE_BYTES:
            self._small += data
            if len(self._small) < PIECE_BYTES:
                return
            data = b""
        if self._small:
            self._pieces.append(bytes(self._small))
            self._small.clear()
        if data:
            self._pieces.append(data)

    async def whole(self) -> bytes:
        """All of it; there is nothing left here."""
        pieces: list[bytes | mmap.mmap | memoryview] = [*self._pieces, bytes(self._small)]
        if self._room:
            pieces[-2] = memoryview(pieces[-2])[: -len(self._room)]
        self._pieces.clear()
        self._room = memoryview(b"")
        if self.size < JOINED_AT_ONCE_BYTES:
            return b"".join(pieces)
        return await asyncio.get_running_loop().run_in_executor(None, b"".join, pieces)

    def _taken_out(self) -> bytes:
        """Return the pieces that are there, which are few, and let go of them."""
        data = b"".join([*self._pieces, self._small])
        self._pieces.clear()
        self._small.clear()
        return data

    def _add_to_segments(self, data: bytes) -> None:
        while data:
            if not self._room:
                segment = mmap.mmap(-1, SEGMENT_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                self._pieces.append(segment)
                self._room = memoryview(segment)
            taken = data[: len(self._room)]
            self._room[: len(taken)] = taken
            self._room = self._room[len(taken) :]
            data = data[len(taken) :]
