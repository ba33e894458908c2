"""A startup profile: which chunks of an image its first start used, in their order, and the blocks it read of them.

    magic 8 | nonce 12 |  count 4 | chunk numbers, 4 each | startup data (`startup_data.py`)  |  tag 16
    └─ authenticated ─┘└──────────────────────────── AES-256-GCM ────────────────────────────┘

Also authenticated are the image's name and a digest of its chunk names: a profile of the same container image with other bytes,
which another version of sockd may have made of it, is refused. Numbers are big-endian.

The profile is stored beside the manifest, and read with it. Reads are answered from the startup data, so nothing is used of a
profile before all of it was authenticated. Profiles of the form before (magic `sockdpr1`) have the order only.
"""

from __future__ import annotations

import array
import hashlib
import os
import struct
import sys
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sockd.chunks.chunk import NAME_BYTES
from sockd.chunks.manifest import Manifest
from sockd.plain.errors import Tampered

MAGIC = b"sockdpr3"
OLD_MAGIC = b"sockdpr1"
MOST_CHUNKS = 1 << 16
_NONCE_BYTES = 12
_HEAD = struct.Struct(f">{len(MAGIC)}s{_NONCE_BYTES}s")
_COUNT = struct.Struct(">I")


class Profile(NamedTuple):
    """What a start used."""

    order: tuple[int, ...]
    """Chunks, in the order of their first use."""
    data: bytes = b""
    """Startup data; empty: none."""


def seal_profile(manifest: Manifest, profile: Profile, tenant_key: bytes) -> bytes:
    """The profile of an image as it is stored; chunks beyond MOST_CHUNKS are left out."""
    order = profile.order[:MOST_CHUNKS]
    nonce = os.urandom(_NONCE_BYTES)
    head = _HEAD.pack(MAGIC, nonce)
    content = _COUNT.pack(len(order)) + _big_endian(array.array("I", order)).tobytes() + profile.data
    return head + AESGCM(tenant_key).encrypt(nonce, content, head + _identity(manifest))


def unseal_profile(data: bytes, manifest: Manifest, tenant_key: bytes) -> Profile:
    """What was sealed for these bytes of this image. Raises: Tampered for any change, another key, or another image."""
    if data[: len(MAGIC)] == OLD_MAGIC:
        return Profile(_unsealed_order(data, manifest.image, tenant_key))
    if len(data) < _HEAD.size or data[: len(MAGIC)] != MAGIC:
        raise Tampered("the store has something else where a startup profile should be")
    _, nonce = _HEAD.unpack_from(data)
    head = data[: _HEAD.size]
    try:
        content = AESGCM(tenant_key).decrypt(nonce, memoryview(data)[_HEAD.size :], head + _identity(manifest))
    except (InvalidTag, ValueError):
        raise Tampered("a startup profile was changed, or is of other bytes, another image or another tenant") from None
    (count,) = _COUNT.unpack_from(content)
    end = _COUNT.size + 4 * count
    return Profile(tuple(_big_endian(array.array("I", content[_COUNT.size : end]))), content[end:])


def first_chunks(order: tuple[int, ...] | None, metadata_chunks: int, chunks: int, most: int) -> tuple[int, ...]:
    """POLICY: what is prefetched when an image is opened: chunk 0, which has the superblock; the profile, or without one the
    chunks of the metadata zone, with which an image begins. At most `most` chunks."""
    wanted = dict.fromkeys((0, *(order or range(metadata_chunks))))
    return tuple(number for number in wanted if number < chunks)[:most]


def _identity(manifest: Manifest) -> bytes:
    """What a profile is bound to."""
    names = b"".join([chunk.name if chunk else bytes(NAME_BYTES) for chunk in manifest.chunks])
    return hashlib.sha256(manifest.size_bytes.to_bytes(8, "big") + names).digest() + manifest.image.encode()


def _unsealed_order(data: bytes, image: str, tenant_key: bytes) -> tuple[int, ...]:
    """Of the form before: magic 8 | nonce 12 | count 4 | chunk numbers, 4 each | tag 16. Raises: Tampered."""
    if len(data) < _HEAD.size + _COUNT.size:
        raise Tampered("a startup profile was cut")
    (count,) = _COUNT.unpack_from(data, _HEAD.size)
    begin = _HEAD.size + _COUNT.size
    end = begin + 4 * count
    try:
        AESGCM(tenant_key).decrypt(data[len(MAGIC) : _HEAD.size], data[end:], data[:end] + image.encode())
    except (InvalidTag, ValueError):
        raise Tampered("a startup profile was changed, or is of another image or tenant") from None
    return tuple(_big_endian(array.array("I", data[begin:end])))


def _big_endian(numbers: array.array[int]) -> array.array[int]:
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
