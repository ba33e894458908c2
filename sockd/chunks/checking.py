"""Which chunks of an image a store cannot give as they were stored."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from sockd.chunks.manifest import Manifest
from sockd.chunks.store import ChunkStore
from sockd.plain.errors import ChunkMissing, Tampered

THREADS = 4


def wrong_chunks(manifest: Manifest, store: ChunkStore, *, threads: int = THREADS) -> frozenset[bytes]:
    """Names of chunks that are missing or have other bytes. All are read, at most `threads` at once. Raises: StoreUnavailable."""

    def is_wrong(name: bytes) -> bool:
        try:
            store.get(manifest.root, name)
        except (ChunkMissing, Tampered):
            return True
        return False

    names = sorted({chunk.name for chunk in manifest.chunks if chunk})
    pool = ThreadPoolExecutor(threads, thread_name_prefix="check")
    try:
        return frozenset(name for name, wrong in zip(names, pool.map(is_wrong, names), strict=True) if wrong)
    finally:
        pool.shutdown(cancel_futures=True)
