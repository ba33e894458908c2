"""The manifest of an image: which chunks it has, in order, and their keys; sealed for one tenant.

    magic 8 | nonce 12 | size 8 | chunks 4 | facts 4 |  facts (JSON)  |  names, 32 each  |  keys, 32 each  |  tag 16
    └────────────────────────── authenticated ──────────────────────────────────────────┘└─ AES-256-GCM ─┘

Numbers are big-endian. A chunk of zeros has a name and a key of zeros. Names are readable, so that garbage collection copies
the chunks of an image without its tenant's key; keys are not. The form does not name the root that the manifest is stored
in: a copy of the manifest in another root is the same bytes.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sockd.base.errors import Tampered
from sockd.images.chunks.chunk import CHUNK_BYTES, KEY_BYTES, NAME_BYTES, Chunk

MAGIC = b"sockdim1"
NONCE_BYTES = 12
TAG_BYTES = 16
MAX_CHUNKS = (1 << 40) // CHUNK_BYTES
_HEAD = struct.Struct(f">{len(MAGIC)}s{NONCE_BYTES}sQII")
_NO_NAME = bytes(NAME_BYTES)
_NO_KEY = bytes(KEY_BYTES)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One image."""

    image: str
    """What identifies its bytes, such as the digest of the container image it was made from."""
    size_bytes: int
    root: str
    """The root of the store that has its chunks."""
    chunks: tuple[Chunk | None, ...]
    """Each has CHUNK_BYTES of the image, the last one the rest; None: zeros."""
    header: bytes = b"{}"
    """JSON of those who made the image; this module does not read it."""

    def __post_init__(self) -> None:
        if len(self.chunks) != chunk_count(self.size_bytes):
            raise ValueError(f"{len(self.chunks)} chunks of an image of {self.size_bytes} bytes")

    def chunk_size(self, index: int) -> int:
        """Bytes of this chunk's plaintext, and of its ciphertext."""
        return min(CHUNK_BYTES, self.size_bytes - index * CHUNK_BYTES)


class _Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    image: str
    header: msgspec.Raw


def chunk_count(size_bytes: int) -> int:
    return -(-size_bytes // CHUNK_BYTES)


def seal(manifest: Manifest, tenant_key: bytes) -> bytes:
    """The manifest as it is stored. Two seals of one manifest differ. Raises: msgspec.DecodeError: the header is no JSON."""
    msgspec.json.decode(manifest.header)
    facts = msgspec.json.encode(_Facts(manifest.image, msgspec.Raw(manifest.header)))
    nonce = os.urandom(NONCE_BYTES)
    head = _HEAD.pack(MAGIC, nonce, manifest.size_bytes, len(manifest.chunks), len(facts))
    names = b"".join([chunk.name if chunk else _NO_NAME for chunk in manifest.chunks])
    keys = b"".join([chunk.key if chunk else _NO_KEY for chunk in manifest.chunks])
    open_part = head + facts + names
    return open_part + AESGCM(tenant_key).encrypt(nonce, keys, open_part)


def unseal(data: bytes, tenant_key: bytes, *, root: str, image: str | None = None) -> Manifest:
    """The manifest that was sealed.

    Args:
        root: where the manifest was read from.
        image: which one it must be of. A store could return another manifest of the same tenant.

    Raises: Tampered for any change, another key, or another image."""
    form = _Form.of(data)
    try:
        keys = AESGCM(tenant_key).decrypt(form.nonce, data[form.names_end :], data[: form.names_end])
    except InvalidTag:
        raise Tampered("a manifest was changed, or is of another tenant") from None
    facts = msgspec.json.decode(data[_HEAD.size : form.facts_end], type=_Facts)
    if image is not None and facts.image != image:
        raise Tampered(f"the store has the manifest of {facts.image[:80]} where that of {image[:80]} should be")
    names = data[form.facts_end : form.names_end]
    chunks = tuple(
        Chunk(name, keys[at : at + KEY_BYTES]) if (name := names[at : at + NAME_BYTES]) != _NO_NAME else None
        for at in range(0, len(names), NAME_BYTES)
    )
    return Manifest(facts.image, form.size_bytes, root, chunks, bytes(facts.header))


def chunk_names(data: bytes) -> set[bytes]:
    """The chunks that a sealed manifest names. Nothing is authenticated: for copying chunks, which are verified by name.

    Raises: Tampered when this is no manifest."""
    form = _Form.of(data)
    names = data[form.facts_end : form.names_end]
    return {names[at : at + NAME_BYTES] for at in range(0, len(names), NAME_BYTES)} - {_NO_NAME}


@dataclass(frozen=True, slots=True)
class _Form:
    """Where the parts of a sealed manifest are."""

    nonce: bytes
    size_bytes: int
    facts_end: int
    names_end: int

    @classmethod
    def of(cls, data: bytes) -> _Form:
        """Raises: Tampered unless the lengths fit."""
        if len(data) < _HEAD.size or data[: len(MAGIC)] != MAGIC:
            raise Tampered("the store has something else where a manifest should be")
        _, nonce, size_bytes, count, facts_bytes = _HEAD.unpack_from(data)
        facts_end = _HEAD.size + facts_bytes
        names_end = facts_end + count * NAME_BYTES
        if (
            count > MAX_CHUNKS
            or count != chunk_count(size_bytes)
            or len(data) != names_end + count * KEY_BYTES + TAG_BYTES
        ):
            raise Tampered("a manifest has another length than its header says")
        return cls(nonce, size_bytes, facts_end, names_end)
