"""A whole image written to a file, for hosts without FUSE: many chunks at a time, each verified, holes where it has zeros.

The file is synced when it returns. Owns nothing.
"""

from __future__ import annotations

import os
import threading
from errno import EDQUOT, ENOSPC

from sockd.base.errors import SockdError, StorageFull
from sockd.images.agent.chunk_fetches import ChunkFetches, Urgency
from sockd.images.agent.open_image import Contents
from sockd.images.chunks.chunk import CHUNK_BYTES, decrypt

MOST_AT_ONCE = 16
"""Chunks that are asked for and not written: 8 MB of memory."""


def write_image(size_bytes: int, contents: Contents, file: int, fetches: ChunkFetches) -> None:
    """Write all of an image to `file`, which is empty. Raises: ChunkStoreFailed; StorageFull: the disk of the file is full."""
    os.ftruncate(file, size_bytes)
    room = threading.Semaphore(MOST_AT_ONCE)
    failures: list[SockdError] = []
    for number, chunk in enumerate(contents.chunks):
        if chunk is None:
            continue
        room.acquire()
        if failures:
            room.release()
            break

        def arrived(
            data: bytes | None, error: SockdError | None, at: int = number * CHUNK_BYTES, key: bytes = chunk.key
        ) -> None:
            try:
                if data is None:
                    failures.append(error or SockdError("a chunk is missing"))
                else:
                    _write_all(file, decrypt(data, key), at)
            except OSError as failure:
                failures.append(_failure(failure))
            finally:
                room.release()

        fetches.want(contents.root, chunk.name, Urgency.READ, arrived)
    for _ in range(MOST_AT_ONCE):
        room.acquire()
    if failures:
        raise failures[0]
    try:
        os.fsync(file)
    except OSError as failure:
        raise _failure(failure) from failure


def _write_all(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written


def _failure(error: OSError) -> SockdError:
    if error.errno in (ENOSPC, EDQUOT):
        return StorageFull()
    return SockdError(f"an image could not be written: {error.strerror}")
