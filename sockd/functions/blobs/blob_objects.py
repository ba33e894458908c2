"""The bytes of blobs: objects of the chunk store, each a sealed part of one file.

    blobs/<space>/<generation>/<number>     nonce 12 | a part of the file | tag 16     AES-256-GCM

The name of the blob, its generation, the part's number and the number of parts are authenticated with it. Owns nothing. All calls
block.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sockd.base.errors import Tampered
from sockd.images.chunks.store import ChunkStore

NONCE_BYTES = 12
PART_BYTES = 8 << 20
"""The plaintext of each part but the last."""


class BlobObjects:
    """The objects of one group of workers. Each call may raise StoreUnavailable; `write` also StoreFull."""

    def __init__(self, store: ChunkStore, key: bytes, space: str) -> None:
        """Args: space: the prefix of the group's objects."""
        self._store = store
        self._cipher = AESGCM(key)
        self._prefix = f"blobs/{space}/"

    def write(self, name: str, generation: str, file: BinaryIO) -> int:
        """Store a file from its beginning; return the number of its parts. All are durable then."""
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        parts = max(-(-size // PART_BYTES), 1)
        for number in range(parts):
            nonce = os.urandom(NONCE_BYTES)
            sealed = self._cipher.encrypt(nonce, file.read(PART_BYTES), _bound_to(name, generation, number, parts))
            self._store.put_object(self._key(generation, number), nonce + sealed)
        return parts

    def read(self, name: str, generation: str, parts: int, file: BinaryIO) -> bool:
        """Write a blob to a file; False: a part of it is not there. Raises: Tampered."""
        for number in range(parts):
            found = self._store.get_object(self._key(generation, number))
            if found is None:
                return False
            nonce, sealed = found.data[:NONCE_BYTES], found.data[NONCE_BYTES:]
            try:
                file.write(self._cipher.decrypt(nonce, sealed, _bound_to(name, generation, number, parts)))
            except (InvalidTag, ValueError):
                raise Tampered(f"the file {name[:40]} in {self._store.name} is not as it was stored") from None
        return True

    def has(self, generation: str, parts: int) -> bool:
        """Whether all parts are there."""
        return len(list(self._store.list_objects(f"{self._prefix}{generation}/"))) == parts

    def generations(self) -> Iterator[str]:
        """Iterate over the generations that have objects, each once."""
        last = ""
        for key in self._store.list_objects(self._prefix):
            generation = key.removeprefix(self._prefix).partition("/")[0]
            if generation != last:
                yield generation
            last = generation

    def delete(self, generation: str) -> None:
        """Delete all objects of a generation."""
        for key in list(self._store.list_objects(f"{self._prefix}{generation}/")):
            self._store.delete_object(key)

    def _key(self, generation: str, number: int) -> str:
        return f"{self._prefix}{generation}/{number:05}"


def _bound_to(name: str, generation: str, number: int, parts: int) -> bytes:
    return f"sockd blob\0{name}\0{generation}\0{number}\0{parts}".encode()
