"""Segments: how startup data is stored, so that a start uses the first of it while the rest is still being decrypted.

    segment = AES-256-GCM(key, 1 MiB of the data) with its tag of 16 bytes; the nonce is the segment's number
    index   = bytes of data 8 | key 32

The key is random and encrypts nothing else. The index is sealed with the profile (`profile.py`), so that segments of another one,
or in another order, do not fit it. Numbers are big-endian.
"""

from __future__ import annotations

import os
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sockd.base.errors import Tampered

SEGMENT_BYTES = 1 << 20
_KEY_BYTES, _NONCE_BYTES, _TAG_BYTES = 32, 12, 16
_INDEX = struct.Struct(f">Q{_KEY_BYTES}s")


def seal(data: bytes) -> tuple[bytes, list[bytes]]:
    """(index, segments) of data, encrypted under a new key. The index is to be sealed, and kept secret."""
    key = os.urandom(_KEY_BYTES)
    cipher, view = AESGCM(key), memoryview(data)
    begins = range(0, len(data), SEGMENT_BYTES)
    segments = [cipher.encrypt(_nonce(n), view[at : at + SEGMENT_BYTES], None) for n, at in enumerate(begins)]
    return _INDEX.pack(len(data), key), segments


class Segments:
    """Where the segments of data are in a file, and their key. Owns nothing."""

    def __init__(self, index: bytes, at: int) -> None:
        """Args: index: authenticated; at: of the first segment. Raises: Tampered: it is no index."""
        if len(index) != _INDEX.size:
            raise Tampered(f"an index of startup data with {len(index)} bytes")
        size, key = _INDEX.unpack(index)
        self.size = int(size)
        """The size of the data, in bytes."""
        self.count = -(-self.size // SEGMENT_BYTES)
        self.end = at + self.size + self.count * _TAG_BYTES
        """The end of the last segment, in the file."""
        self._cipher = AESGCM(key)
        self._at = at

    def place(self, number: int) -> slice:
        """The place of a segment, in the data."""
        begin = number * SEGMENT_BYTES
        return slice(begin, min(begin + SEGMENT_BYTES, self.size))

    def read_into(self, file: int, number: int, piece: memoryview) -> None:
        """Decrypt a segment. Blocks. Args: piece: as long as its place.

        Raises: Tampered: the file has something else; OSError: it cannot be read."""
        at = self._at + number * (SEGMENT_BYTES + _TAG_BYTES)
        sealed = os.pread(file, len(piece) + _TAG_BYTES, at)
        try:
            self._cipher.decrypt_into(_nonce(number), sealed, None, piece)
        except (InvalidTag, ValueError):
            piece[:] = bytes(len(piece))  # it has what was decrypted before the tag was found to be wrong
            raise Tampered(f"segment {number} of the startup data was changed") from None


def _nonce(number: int) -> bytes:
    return number.to_bytes(_NONCE_BYTES, "big")
