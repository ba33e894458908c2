"""One chunk of an image: convergent encryption, the name, and decryption of a part.

    key        = BLAKE3(salt | BLAKE3(plaintext))
    ciphertext = AES-256-CTR(key, plaintext), the counter starts at zero
    name       = BLAKE3(ciphertext); in older images SHA-256(ciphertext)

Equal plaintext under one salt has one key, one ciphertext and one name, so that a store holds it once. A key encrypts one
plaintext only, therefore the counter may start at zero. CTR decrypts any range without the bytes before it: a cache keeps the
ciphertext, verifies it once when it is filled, and decrypts what a read needs.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

from blake3 import blake3
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from sockd.base.errors import Tampered

CHUNK_BYTES = 512 << 10
NAME_BYTES = 32
KEY_BYTES = 32
_BLOCK_BYTES = 16
_ZEROS = bytes(CHUNK_BYTES)


class Chunk(NamedTuple):
    """What a manifest has of a chunk that is not all zeros."""

    name: bytes
    """Digest of the ciphertext."""
    key: bytes


def is_zero(plain: bytes) -> bool:
    """Whether the plaintext is zeros only; such a chunk is not stored."""
    return plain == (_ZEROS if len(plain) == CHUNK_BYTES else bytes(len(plain)))


def encrypt(plain: bytes, salt: bytes) -> tuple[Chunk, bytes]:
    """The chunk and its ciphertext, which is as long as the plaintext."""
    key = blake3(salt + blake3(plain).digest()).digest()
    ciphertext = _crypt(plain, key, 0)
    return Chunk(blake3(ciphertext).digest(), key), ciphertext


def decrypt(ciphertext: bytes | memoryview, key: bytes, offset: int = 0, size: int | None = None) -> bytes:
    """The plaintext from `offset`, at most `size` bytes. The ciphertext must have been verified."""
    end = None if size is None else offset + size
    return _crypt(memoryview(ciphertext)[offset:end], key, offset)


def is_named(name: bytes, ciphertext: bytes | memoryview, *, blake3_digest: bytes | None = None) -> bool:
    """Whether this is the ciphertext of that name. Both digests resist second preimages, so either of them is proof.

    Args: blake3_digest: of the ciphertext, if the caller has computed it."""
    if hmac.compare_digest(blake3_digest or blake3(ciphertext).digest(), name):
        return True
    return hmac.compare_digest(hashlib.sha256(ciphertext).digest(), name)


def verify(name: bytes, ciphertext: bytes | memoryview) -> None:
    """Raises: Tampered when this is not the ciphertext of that name."""
    if not is_named(name, ciphertext):
        raise Tampered(f"the chunk {name.hex()[:16]} has other bytes than its name says")


def _crypt(data: bytes | memoryview, key: bytes, offset: int) -> bytes:
    """CTR is its own inverse. The counter of a byte is the number of its block."""
    block, within = divmod(offset, _BLOCK_BYTES)
    context = Cipher(AES(key), CTR(block.to_bytes(_BLOCK_BYTES, "big"))).encryptor()
    if within:
        context.update(bytes(within))
    return context.update(data)
