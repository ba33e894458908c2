"""What a chunk store does, whatever keeps its bytes.

    chunks    (root, name) -> ciphertext; immutable: the name says what the bytes are
    objects   key -> bytes, such as a manifest; replaced whole, and by compare-and-set where two workers may write

All calls block. Any threads and processes may call at once. Each call may raise StoreUnavailable; those that write, StoreFull.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from sockd.images.chunks.chunk import NAME_BYTES

MAX_OBJECT_BYTES = 256 << 20
"""Larger than a manifest of 1 TiB."""
_ROOT = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._:=-]{0,199}(?:/[A-Za-z0-9_-][A-Za-z0-9._:=-]{0,199}){0,7}")
_NAME = re.compile(r"[0-9a-f]{64}")


class StoredObject(NamedTuple):
    """An object as it was read."""

    data: bytes
    version: str
    """Changes with each write; for `swap_object`."""


class ChunkStore(Protocol):
    """One store. `name` in messages: what users call it, without credentials."""

    name: str
    keeps_bytes: bool
    """Whether a service answers for the bytes of what it keeps; they are not checked then before a read of them has failed."""

    @property
    def heard_s(self) -> float:
        """When something came from it last (time.monotonic), whichever call it was for. Of a store without a connection: now."""

    def put(self, root: str, name: bytes, data: bytes, *, replace: bool = False) -> bool:
        """Store a chunk unless it is there; one that is seen to be wrong is replaced. True: it was absent, or is replaced.

        `data` must be what `name` says; a store may check it. The chunk is durable when an object has been written after
        it, by whichever process. Args: replace: what is there was found to be wrong, and is not looked at."""

    def get(self, root: str, name: bytes) -> bytes:
        """The chunk, verified. Raises: ChunkMissing; ChunkUnreadable; Tampered."""

    def has(self, root: str, name: bytes) -> bool:
        """Whether the chunk is there. Its bytes are not verified."""

    def names(self, root: str) -> Iterator[bytes]:
        """Names of all chunks below a root, in no order. Those put or deleted meanwhile may be missing."""

    def delete(self, root: str, name: bytes) -> None:
        """Delete a chunk; one that is not there is fine."""

    def copy(self, source: str, target: str, name: bytes) -> bool:
        """Store a chunk of one root in another, unless it is there. True: it was absent. Its bytes are not verified.

        Raises: ChunkMissing."""

    def get_object(self, key: str) -> StoredObject | None:
        """An object, None when it is not there."""

    def put_object(self, key: str, data: bytes) -> None:
        """Write an object, durable on return, whatever was there."""

    def create_object(self, key: str, data: bytes) -> bool:
        """Write an object, durable on return, unless it is there. False: it is there."""

    def swap_object(self, key: str, data: bytes, version: str) -> bool:
        """Write an object, durable on return, if it still has this version. False: it has not, or is gone."""

    def list_objects(self, prefix: str) -> Iterator[str]:
        """Keys that begin with the prefix, in order. `prefix` ends with a slash, or is empty."""

    def delete_object(self, key: str) -> None:
        """Delete an object; one that is not there is fine."""

    def close(self) -> None:
        """Release what is kept between calls. The store is not used afterwards."""


def check_root(root: str) -> str:
    """Raises ValueError unless it may name a root."""
    if not _ROOT.fullmatch(root):
        raise ValueError(f"not a root: {root!r}")
    return root


def check_key(key: str) -> str:
    """Raises ValueError unless it may name an object: parts of letters, digits and `_-.:=`, none of which begins with a dot."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"not an object's key: {key!r}")
    return key


def check_prefix(prefix: str) -> str:
    """Raises ValueError unless it is empty or a key with a slash at its end."""
    if prefix:
        check_key(prefix.removesuffix("/"))
        if not prefix.endswith("/"):
            raise ValueError(f"not a prefix: {prefix!r}")
    return prefix


def check_name(name: bytes) -> str:
    """The spelling of a chunk's name. Raises ValueError unless it is one."""
    if len(name) != NAME_BYTES:
        raise ValueError(f"not a chunk's name: {name!r}")
    return name.hex()


def parsed_name(text: str) -> bytes | None:
    """The chunk's name of this spelling, None when it is none."""
    return bytes.fromhex(text) if _NAME.fullmatch(text) else None
