"""Streams with a known digest: what is read is hashed, and the end is only reached if the digest is right."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from typing import Protocol

from sockd.base.errors import BadImage

AGAIN = "push or save the image again"
"""What helps against an image that arrives damaged."""


class Readable(Protocol):
    """The part of a binary file that is needed here."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; empty at the end."""

    def close(self) -> None:
        """Let go of what is behind it."""


class Verified(io.RawIOBase):
    """A stream whose last read raises BadImage unless size and digest are the expected ones."""

    def __init__(self, stream: Readable, digest: str, size_bytes: int, label: str) -> None:
        """Args: size_bytes: -1: unknown; label: names the blob in errors."""
        self._stream = stream
        self._digest = digest
        self._size_bytes = size_bytes
        self._label = label
        self._hash = hashlib.new(digest.partition(":")[0])
        self._read_bytes = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Raises: BadImage; OSError of the stream."""
        data = self._stream.read(size)
        self._hash.update(data)
        self._read_bytes += len(data)
        if 0 <= self._size_bytes < self._read_bytes:
            raise BadImage(f"{self._label} has more than the {self._size_bytes} bytes that its manifest states")
        if not data and size != 0:
            self._check()
        return data

    def _check(self) -> None:
        if 0 <= self._size_bytes != self._read_bytes:
            raise BadImage(f"{self._label} ended after {self._read_bytes} of {self._size_bytes} bytes; {AGAIN}")
        found = self._hash.hexdigest()
        if found != self._digest.partition(":")[2]:
            raise BadImage(f"{self._label} was altered: its digest is {found[:16]}..., not {self._digest}; {AGAIN}")

    def close(self) -> None:
        self._stream.close()
        super().close()


class Slice(io.RawIOBase):
    """A part of a file as a stream, by reads at offsets: several can be open at once."""

    def __init__(self, read: Callable[[int, int], bytes], offset: int, size_bytes: int) -> None:
        """Args: read: of the file, by offset and size."""
        self._read = read
        self._offset = offset
        self._left = size_bytes

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        size = self._left if size < 0 else min(size, self._left)
        data = self._read(self._offset, size) if size else b""
        self._offset += len(data)
        self._left -= len(data)
        return data
