"""The bytes of a compressed layer or archive as the tar file that was compressed, never more than was asked for at once."""

from __future__ import annotations

import importlib
import io
import zlib
from typing import Any, BinaryIO, cast

from sockd.base.errors import BadImage
from sockd.base.extras import installing
from sockd.images.registry.digests import AGAIN, Readable

zstandard: Any
inflate: Any
"""`zlib`, or what has its names and inflates twice as fast."""
# Both are in the extra `images`.
try:
    zstandard = importlib.import_module("zstandard")
except ImportError:
    zstandard = None
try:
    inflate = importlib.import_module("isal.isal_zlib")
except ImportError:
    inflate = zlib

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
_OTHERS = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x04\x22\x4d\x18": "lz4"}
INPUT_BYTES = 256 << 10
_MOST_WINDOW_BYTES = 128 << 20
"""`zstd --long`; a frame that wants more memory is refused."""
_GZIP_WINDOW = 31
"""zlib.h: a window of 32 KB, with a gzip header."""


def decompressed(stream: Readable, label: str) -> Readable:
    """The stream without its compression, which its first bytes show: media types of registries are not reliable.

    Reading to the end reads `stream` to its end. Raises: BadImage, also at reads."""
    start = _read_up_to(stream, 6)
    whole = _Prefixed(start, stream)
    if start.startswith(GZIP):
        return _Gzip(whole, label)
    if start.startswith(ZSTD):
        if zstandard is None:
            raise BadImage(
                f"{label} is compressed by zstd; on the worker: {installing('images')}; or push it with gzip"
            )
        return _Zstd(whole, label)
    for magic, name in _OTHERS.items():
        if start.startswith(magic):
            raise BadImage(f"{label} is compressed by {name}; layers are tar files, as they are or by gzip or zstd")
    return whole


def _read_up_to(stream: Readable, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := stream.read(size - len(data))):
        data += more
    return data


class _Prefixed(io.RawIOBase):
    """Bytes that were read ahead, and then the rest."""

    def __init__(self, start: bytes, stream: Readable) -> None:
        self._start = start
        self._stream = stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._start:
            data, self._start = self._start[:size], self._start[size:]
            return data
        return self._stream.read(size)


class _Gzip(io.RawIOBase):
    """Members of gzip, one after the other; zeros behind the last are padding (gzip(1))."""

    def __init__(self, stream: Readable, label: str) -> None:
        self._stream = stream
        self._label = label
        self._member = inflate.decompressobj(_GZIP_WINDOW)
        self._input = b""
        self._is_within = True
        """Whether a member has begun, or must."""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        assert size > 0
        while True:
            if not self._input:
                self._input = self._stream.read(INPUT_BYTES)
                if not self._input:
                    if self._is_within:
                        raise BadImage(f"{self._label} ends inside of its compressed data; {AGAIN}")
                    return b""
            if not self._is_within:
                self._input = self._input.lstrip(b"\0")
                if not self._input:
                    continue
                self._member, self._is_within = inflate.decompressobj(_GZIP_WINDOW), True
            try:
                data: bytes = self._member.decompress(self._input, size)
            except inflate.error as error:
                raise BadImage(f"{self._label} has damaged compressed data ({error}); {AGAIN}") from error
            if self._member.eof:
                self._input, self._is_within = self._member.unused_data, False
            else:
                self._input = self._member.unconsumed_tail
            if data:
                return data


class _Zstd(io.RawIOBase):
    """Frames of zstd, one after the other."""

    def __init__(self, stream: Readable, label: str) -> None:
        self._stream = stream
        self._label = label
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW_BYTES)
        self._reader: Any = decompressor.stream_reader(
            cast(BinaryIO, stream), read_size=INPUT_BYTES, read_across_frames=True
        )

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        assert size > 0
        try:
            data: bytes = self._reader.read(size)
        except zstandard.ZstdError as error:
            raise BadImage(f"{self._label} has damaged compressed data ({error}); {AGAIN}") from error
        if not data:
            while self._stream.read(INPUT_BYTES):
                pass
        return data
