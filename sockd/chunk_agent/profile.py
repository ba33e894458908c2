"""A startup profile: the chunks of an image in the order in which its first start used them; sealed for one tenant.

    magic 8 | nonce 12 | count 4 | chunk numbers, 4 each | tag 16
    └─────── and the image's name, authenticated ────────┘

The profile is stored beside the manifest, and read with it. It says which chunks are prefetched, so a wrong one costs time and
traffic, never correctness; the seal keeps others from causing even that. Numbers are big-endian.
"""

from __future__ import annotations

import array
import os
import struct
import sys

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sockd.plain.errors import Tampered

MAGIC = b"sockdpr1"
MOST_CHUNKS = 1 << 16
_NONCE_BYTES = 12
_HEAD = struct.Struct(f">{len(MAGIC)}s{_NONCE_BYTES}sI")


def seal_profile(image: str, order: tuple[int, ...], tenant_key: bytes) -> bytes:
    """The profile as it is stored; what is beyond MOST_CHUNKS is left out."""
    order = order[:MOST_CHUNKS]
    nonce = os.urandom(_NONCE_BYTES)
    content = _HEAD.pack(MAGIC, nonce, len(order)) + _big_endian(array.array("I", order)).tobytes()
    return content + AESGCM(tenant_key).encrypt(nonce, b"", content + image.encode())


def unseal_profile(data: bytes, image: str, tenant_key: bytes) -> tuple[int, ...]:
    """The order that was sealed for this image. Raises: Tampered for any change, another key, or another image."""
    if len(data) < _HEAD.size or data[: len(MAGIC)] != MAGIC:
        raise Tampered("the store has something else where a startup profile should be")
    _, nonce, count = _HEAD.unpack_from(data)
    end = _HEAD.size + 4 * count
    try:
        AESGCM(tenant_key).decrypt(nonce, data[end:], data[:end] + image.encode())
    except (InvalidTag, ValueError):
        raise Tampered("a startup profile was changed, or is of another image or tenant") from None
    return tuple(_big_endian(array.array("I", data[_HEAD.size : end])))


def first_chunks(order: tuple[int, ...] | None, metadata_chunks: int, chunks: int, most: int) -> tuple[int, ...]:
    """POLICY: what is prefetched when an image is opened: chunk 0, which has the superblock; the profile, or without one the
    chunks of the metadata zone, with which an image begins. At most `most` chunks."""
    wanted = dict.fromkeys((0, *(order or range(metadata_chunks))))
    return tuple(number for number in wanted if number < chunks)[:most]


def _big_endian(numbers: array.array[int]) -> array.array[int]:
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
