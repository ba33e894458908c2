"""Images as chunks in a store, and what reads them: for tests of the agent, without a deploy."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

from sockd.images.chunks.chunk import CHUNK_BYTES, Chunk
from sockd.images.chunks.manifest import Manifest
from sockd.images.chunks.store import ChunkStore
from sockd.images.chunks.upload import upload

ROOT = "r1"
SALT = b"salt"


def random_image(chunks: int, seed: int = 1) -> bytes:
    """Chunks of random bytes, every seventh of zeros, the last one short."""
    source = random.Random(seed)
    pieces = [bytes(CHUNK_BYTES) if number % 7 == 3 else source.randbytes(CHUNK_BYTES) for number in range(chunks)]
    return b"".join(pieces)[:-1000]


def stored(data: bytes, store: ChunkStore, image: str = "image", *, root: str = ROOT, salt: bytes = SALT) -> Manifest:
    """The manifest of an image whose chunks are in the store now."""
    pieces = (data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES))
    uploaded = upload(pieces, store, root=root, salt=salt)
    return Manifest(image, uploaded.size_bytes, root, uploaded.chunks)


def chunk_path(directory: Path, chunk: Chunk | None, root: str = ROOT) -> Path:
    """Where a directory store has it."""
    assert chunk is not None
    text = chunk.name.hex()
    return directory / "roots" / root / text[:2] / text


def flip_bit(path: Path, bit: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


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
