"""Which chunks of an image a store cannot give as they were stored."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

from sockd.base.errors import ChunkMissing, ChunkUnreadable, Tampered
from sockd.images.chunks.manifest import Manifest
from sockd.images.chunks.store import ChunkStore

THREADS = 4
WRONG = (ChunkMissing, ChunkUnreadable, Tampered)
"""What is stored again."""


def wrong_chunks(manifest: Manifest, store: ChunkStore, *, threads: int = THREADS) -> frozenset[bytes]:
    """Names of chunks that are missing, have other bytes or cannot be read. All are read, at most `threads` at once.

    Raises: StoreUnavailable."""
    failed = Event()

    def is_wrong(name: bytes) -> bool:
        if failed.is_set():  # a silent store is not waited for again before the first failure is seen
            return False
        try:
            store.get(manifest.root, name)
        except WRONG:
            return True
        except BaseException:
            failed.set()
            raise
        return False

    names = sorted({chunk.name for chunk in manifest.chunks if chunk})
    pool = ThreadPoolExecutor(threads, thread_name_prefix="check")
    try:
        return frozenset(name for name, wrong in zip(names, pool.map(is_wrong, names), strict=True) if wrong)
    finally:
        pool.shutdown(cancel_futures=True)
