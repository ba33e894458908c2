"""What a connection is once it has switched to another protocol: bytes in both directions, as slow as the slower side reads.

Owns the bytes that have come and were not read yet. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import errno
import os
from typing import Protocol

HELD_BYTES = 64 * 1024
"""Unread: with more the client is not read from."""


class Carrier(Protocol):
    """The connection, as its tunnel uses it."""

    def write(self, head: bytes, body: bytes) -> None:
        """Send both."""

    async def writable(self) -> None:
        """Wait until the peer has read most of what was written."""

    def pause_reading(self) -> None:
        """Take no more for now."""

    def resume_reading(self) -> None:
        """Go on reading."""


class Tunnel:
    """`sockd.base.invoke_request.Duplex`, of a connection that feeds it."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier: Carrier | None = carrier
        """None: the client has gone."""
        self._held = bytearray()
        self._is_at_eof = False
        self._changed = asyncio.Event()

    # -- the connection's calls

    def feed(self, data: bytes) -> None:
        """Some bytes have come."""
        self._held += data
        if len(self._held) > HELD_BYTES and self._carrier is not None:
            self._carrier.pause_reading()
        self._changed.set()

    def feed_eof(self) -> None:
        """No more will come."""
        self._is_at_eof = True
        self._changed.set()

    def lose(self) -> None:
        """The client has gone."""
        self._carrier = None
        self._changed.set()

    # -- the reader's and writer's calls

    async def read(self, n: int) -> bytes:
        while not (self._held or self._is_at_eof):
            self._carrying()
            self._changed.clear()
            await self._changed.wait()
        data = bytes(self._held[:n])
        del self._held[:n]
        if len(self._held) <= HELD_BYTES and self._carrier is not None:
            self._carrier.resume_reading()
        return data

    def write(self, data: bytes) -> None:
        if self._carrier is not None:
            self._carrier.write(b"", data)

    async def drain(self) -> None:
        await self._carrying().writable()
        self._carrying()

    def write_eof(self) -> None:
        """The connection ends with its exchange, behind what was written."""

    def _carrying(self) -> Carrier:
        """Raises: ConnectionResetError: the client has gone."""
        if self._carrier is None:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        return self._carrier
