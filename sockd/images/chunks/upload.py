"""Cut images into a store: encrypt their chunks and put them, several at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import NamedTuple

from sockd.images.chunks.chunk import Chunk, encrypt, is_zero
from sockd.images.chunks.store import ChunkStore

THREADS = 4


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What a store has now of one image."""

    chunks: tuple[Chunk | None, ...]
    size_bytes: int
    new_chunks: int
    """That the root did not have."""
    new_bytes: int


class _Put(NamedTuple):
    chunk: Chunk | None
    size_bytes: int
    is_new: bool


def upload(
    pieces: Iterable[bytes],
    store: ChunkStore,
    *,
    root: str,
    salt: bytes,
    wrong: Collection[bytes] = (),
    threads: int = THREADS,
) -> Uploaded:
    """Put all chunks of an image.

    Args:
        pieces: the image, CHUNK_BYTES each, the last one shorter; they are read in this thread.
        wrong: names of chunks that the root has with other bytes, and that are replaced (`wrong_chunks`).

    At most `2 * threads` pieces are in memory. Chunks that were put before an error stay in the root.

    Raises: StoreUnavailable; StoreFull; what `pieces` raises."""

    failed = Event()

    def put(piece: bytes) -> _Put:
        if failed.is_set() or is_zero(piece):  # a silent store is not waited for again before the first failure is seen
            return _Put(None, len(piece), is_new=False)
        chunk, ciphertext = encrypt(piece, salt)
        try:
            return _Put(chunk, len(piece), store.put(root, chunk.name, ciphertext, replace=chunk.name in wrong))
        except BaseException:
            failed.set()
            raise

    done: list[_Put] = []
    running: deque[Future[_Put]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="upload") as pool:
        try:
            for piece in pieces:
                if len(running) >= 2 * threads:
                    done.append(running.popleft().result())
                running.append(pool.submit(put, piece))
            done += [future.result() for future in running]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    new = [each.size_bytes for each in done if each.is_new]
    return Uploaded(tuple(each.chunk for each in done), sum(each.size_bytes for each in done), len(new), sum(new))
