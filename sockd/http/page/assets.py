"""Static files: style, scripts, icon. Read and compressed once, cached by browsers without expiry.

Owns the bytes. An asset's address holds a digest of its text, so another version is another address.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import NamedTuple

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
CACHE = "public, max-age=31536000, immutable"


class Asset(NamedTuple):
    """One file."""

    url: str
    media_type: str
    body: bytes
    packed: bytes
    """The same, by gzip."""


def load() -> dict[str, Asset]:
    """All of them, by file name. Reads files: for threads."""
    return {path.name: read(path) for path in sorted(STATIC.iterdir()) if path.suffix in MEDIA_TYPES}


def read(path: Path) -> Asset:
    """One file, with its address."""
    body = path.read_bytes()
    digest = hashlib.blake2b(body, digest_size=6).hexdigest()
    return Asset(f"/static/{path.name}?{digest}", MEDIA_TYPES[path.suffix], body, gzip.compress(body, 9, mtime=0))
