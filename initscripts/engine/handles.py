"""Handles: what a guest calls a buffer. Small ints that mean something in one run only."""

from __future__ import annotations

import errno

import msgspec

from sockd_initscripts.errors import CallFailed
from sockd_initscripts.region import Buffer


class Held(msgspec.Struct):
    """What a handle stands for: a buffer (None if it is empty), and the reply that it came as."""

    buffer: Buffer | None
    descriptor: list[str] | None = None
    """The descriptor of the RPC; None for a message from the app."""
    status: int = 0
    etag: str = ""
    """The version of the object that the reply is."""
    headers: dict[str, str] | None = None
    """Headers of the reply, if it has some that the app may need."""

    @property
    def length(self) -> int:
        return 0 if self.buffer is None else self.buffer.length

    def slice(self, offset: int, length: int) -> memoryview:
        """These bytes of the buffer, not copied; raises CallFailed(EINVAL) when it has not so many."""
        if offset < 0 or length < 0 or offset + length > self.length:
            raise CallFailed(errno.EINVAL)
        return memoryview(b"") if self.buffer is None else self.buffer.view[offset : offset + length]


class Handles:
    """A run's handles; the guest's thread only."""

    def __init__(self) -> None:
        self._held: list[Held] = []

    def add(self, held: Held) -> int:
        """A handle for this, from 1 on."""
        self._held.append(held)
        return len(self._held)

    def get(self, handle: int) -> Held:
        """What the handle stands for; raises CallFailed(EBADF)."""
        if not 1 <= handle <= len(self._held):
            raise CallFailed(errno.EBADF)
        return self._held[handle - 1]
