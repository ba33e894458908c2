"""A startup profile: which chunks of an image its first start used, in their order, and the blocks it read of them.

    magic 8 | nonce 12 | size 4 |  count 4 | chunk numbers, 4 each | index of the startup data  |  tag 16  |  segments
    └────── authenticated ──────┘└───────────────────────── AES-256-GCM ─────────────────────────────────┘└ `segments.py`

`size` is that of what AES-256-GCM encrypts, with its tag. Also authenticated are the image's name and a digest of its chunk
names: a profile of the same container image with other bytes, which another version of sockd may have made of it, is refused.
Numbers are big-endian.

The profile is stored next to the manifest. Reads are answered from the startup data, each segment of which is authenticated
before anything of it is used.
"""

from __future__ import annotations

import array
import dataclasses
import hashlib
import os
import struct
import sys
from dataclasses import dataclass
from io import FileIO
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sockd.base.errors import Tampered
from sockd.images.chunks.chunk import NAME_BYTES
from sockd.images.chunks.manifest import Manifest
from sockd.images.profiles.counterparts import counterparts
from sockd.images.profiles.segments import Segments, seal
from sockd.images.profiles.startup_data import Places

MAGIC = b"sockdpr4"
MOST_CHUNKS = 1 << 16
MOST_SEALED_BYTES = 1 << 20
"""The most bytes of order and index."""
_NONCE_BYTES, _TAG_BYTES = 12, 16
_HEAD = struct.Struct(f">{len(MAGIC)}s{_NONCE_BYTES}sI")
_COUNT = struct.Struct(">I")


class Profile(NamedTuple):
    """What a start used."""

    order: tuple[int, ...]
    """Chunks, in the order of their first use."""
    data: bytes = b""
    """Startup data; empty: none."""


@dataclass(frozen=True, slots=True)
class OpenProfile:
    """A profile in a file, of which order and index have been authenticated. Owns the file until `close`."""

    order: tuple[int, ...]
    file: FileIO
    segments: Segments | None
    """The segments of the startup data; None if there is none."""
    image: str
    """The image whose start was recorded."""
    places: Places | None = None
    """The places of that image's chunks in the image that the profile is used for; None if it is the same image."""

    @classmethod
    def of(cls, file: FileIO, manifest: Manifest, tenant_key: bytes) -> OpenProfile:
        """The profile of these bytes of this image. Blocks.

        Args: file: owned by the profile from now on, also on failure.
        Raises: Tampered for any change before the segments, a file that was cut, another key, or another image; OSError."""
        try:
            order, segments = _opened(file.fileno(), manifest, tenant_key)
        except BaseException:
            file.close()
            raise
        return cls(order, file, segments, manifest.image)

    def derived(self, recorded: Manifest, image: Manifest) -> OpenProfile:
        """This profile for an image like the one that it was recorded of. It has the same file.

        Its order has the counterparts of the chunks. Its startup data are the blocks of those chunks that the image has, too: the
        names and keys of both manifests say so, which are authenticated, as the profile is bound to the names of the first."""
        found = counterparts(recorded.chunks, image.chunks)
        order = tuple(place for number in self.order if (place := found.of(number)) is not None)
        return dataclasses.replace(self, order=order, places=Places(recorded.size_bytes, found.equal))

    def check(self) -> None:
        """Authenticate the startup data, all of it. Blocks. Raises: Tampered; OSError."""
        if self.segments is not None:
            for number in range(self.segments.count):
                place = self.segments.place(number)
                self.segments.read_into(self.file.fileno(), number, memoryview(bytearray(place.stop - place.start)))

    def close(self) -> None:
        """Again is nothing."""
        self.file.close()


def seal_profile(manifest: Manifest, profile: Profile, tenant_key: bytes) -> bytes:
    """The profile of an image as it is stored; chunks beyond MOST_CHUNKS are left out. Blocks."""
    order = profile.order[:MOST_CHUNKS]
    index, segments = seal(profile.data) if profile.data else (b"", [])
    content = _COUNT.pack(len(order)) + _big_endian(array.array("I", order)).tobytes() + index
    nonce = os.urandom(_NONCE_BYTES)
    head = _HEAD.pack(MAGIC, nonce, len(content) + _TAG_BYTES)
    sealed = AESGCM(tenant_key).encrypt(nonce, content, head + _identity(manifest))
    return b"".join([head, sealed, *segments])  # without the GIL, as all of them are bytes


def first_chunks(order: tuple[int, ...] | None, metadata_chunks: int, chunks: int, most: int) -> tuple[int, ...]:
    """POLICY: what is prefetched when an image is opened: chunk 0, which has the superblock; the profile, or without one the
    chunks of the metadata zone, with which an image begins. At most `most` chunks."""
    wanted = dict.fromkeys((0, *(order or range(metadata_chunks))))
    return tuple(number for number in wanted if number < chunks)[:most]


def _opened(file: int, manifest: Manifest, tenant_key: bytes) -> tuple[tuple[int, ...], Segments | None]:
    """Order, and the segments of the startup data."""
    head = os.pread(file, _HEAD.size, 0)
    if len(head) < _HEAD.size or head[: len(MAGIC)] != MAGIC:
        raise Tampered("something else, or one of an earlier form, is where a startup profile should be")
    _, nonce, size = _HEAD.unpack(head)
    sealed = os.pread(file, min(size, MOST_SEALED_BYTES), _HEAD.size)
    try:
        content = AESGCM(tenant_key).decrypt(nonce, sealed, head + _identity(manifest))
    except (InvalidTag, ValueError):
        raise Tampered(
            "it is of other chunks, as after a new import of the image, or was changed; the next start records another"
        ) from None
    (count,) = _COUNT.unpack_from(content)
    end = _COUNT.size + 4 * count
    index, at = content[end:], _HEAD.size + size
    segments = Segments(index, at) if index else None
    if os.fstat(file).st_size != (at if segments is None else segments.end):
        raise Tampered("a startup profile has another length than it says")
    return tuple(_big_endian(array.array("I", content[_COUNT.size : end]))), segments


def _identity(manifest: Manifest) -> bytes:
    """What a profile is bound to."""
    names = b"".join([chunk.name if chunk else bytes(NAME_BYTES) for chunk in manifest.chunks])
    return hashlib.sha256(manifest.size_bytes.to_bytes(8, "big") + names).digest() + manifest.image.encode()


def _big_endian(numbers: array.array[int]) -> array.array[int]:
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
