"""A request's body while it arrives: pieces, joined once at the end.

A growing buffer would be copied at each step, which blocks the event loop 3 ms for some megabytes.

Owns the bytes. Knows nothing of limits.
"""

from __future__ import annotations

import asyncio

PIECE_BYTES = 16 * 1024
"""Smaller pieces are joined on arrival, so that a client that sends single bytes does not create an object for each."""
JOINED_AT_ONCE_BYTES = 1 << 20
"""More than that is joined in a thread, and from here on Python does it without its lock."""


class Body:
    """`add` what has come, then `whole`, once."""

    __slots__ = ("_pieces", "_small", "size")

    def __init__(self, *pieces: bytes) -> None:
        self._pieces: list[bytes] = []
        self._small = bytearray()
        """What is less than a piece yet."""
        self.size = 0
        for piece in pieces:
            self.add(piece)

    def add(self, data: bytes) -> None:
        """The next part of it."""
        self.size += len(data)
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
        pieces = [*self._pieces, bytes(self._small)]
        self._pieces.clear()
        if self.size < JOINED_AT_ONCE_BYTES:
            return b"".join(pieces)
        return await asyncio.get_running_loop().run_in_executor(None, b"".join, pieces)
