"""Images as chunks in a directory, and what reads them: for tests of the agent, without a deploy."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

from sockd.chunks.chunk import CHUNK_BYTES, Chunk, encrypt, is_zero
from sockd.chunks.manifest import Manifest

ROOT = "r1"
SALT = b"salt"


def random_image(chunks: int, seed: int = 1) -> bytes:
    """Chunks of random bytes, every seventh of zeros, the last one short."""
    source = random.Random(seed)
    pieces = [bytes(CHUNK_BYTES) if number % 7 == 3 else source.randbytes(CHUNK_BYTES) for number in range(chunks)]
    return b"".join(pieces)[:-1000]


def stored(data: bytes, directory: Path, image: str = "image") -> Manifest:
    """Its chunks in a directory, as a directory store has them."""
    chunks: list[Chunk | None] = []
    for at in range(0, len(data), CHUNK_BYTES):
        plain = data[at : at + CHUNK_BYTES]
        if is_zero(plain):
            chunks.append(None)
            continue
        chunk, ciphertext = encrypt(plain, SALT)
        path = chunk_path(directory, chunk)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(ciphertext)
        chunks.append(chunk)
    return Manifest(image, len(data), ROOT, tuple(chunks))


def chunk_path(directory: Path, chunk: Chunk) -> Path:
    """Where a chunk is."""
    text = chunk.name.hex()
    return directory / "roots" / ROOT / text[:2] / text


def digest_of(path: str) -> str:
    """SHA-256 of a file; in a thread, if it is the agent's."""
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_at(path: str, offset: int, size: int) -> bytes:
    """A part of a file; in a thread, if it is the agent's."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, size, offset)
    finally:
        os.close(fd)
