"""The stripes of one cache node: a tier in memory over a tier in a file, each bounded and with LRU-2.

Owns both. A stripe that is put is in memory at once and in the file later: one thread writes, and when it falls behind,
stripes stay out of the file. A stripe that is read from the file is verified by its digest and taken into memory.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sockd.images.caches.lru_k import Lru2
from sockd.images.caches.slab import CORRELATED_S, LEAST_SLOTS, Slab
from sockd.images.caches.stripes import framed_bytes, is_intact

Framed = bytes | bytearray
"""A stripe; one is never changed that was received into a bytearray."""
MOST_UNWRITTEN = 64
"""Stripes that wait for the disk."""
_READERS = 4
_OVERHEAD_BYTES = 512
"""Bytes of the key, the object and the order, for each stripe in memory."""


class NodeStore:
    """Used on one event loop; the file by threads."""

    def __init__(self, memory_bytes: int, file: Slab | None, *, correlated_s: float = CORRELATED_S) -> None:
        self._memory_bytes = memory_bytes
        self._file = file
        self._held: dict[bytes, Framed] = {}
        self._held_bytes = 0
        self._order: Lru2[bytes] = Lru2(remembered=memory_bytes >> 15, correlated=correlated_s)
        self._reads = ThreadPoolExecutor(_READERS, "file tier")
        self._writes = ThreadPoolExecutor(1, "file tier, writing")
        self._unwritten = 0
        self.memory_hits = self.file_hits = self.misses = self.puts = self.dropped_writes = 0

    @classmethod
    def open(
        cls, memory_bytes: int, directory: Path | None, disk_bytes: int, *, chunk_bytes: int, correlated_s: float
    ) -> NodeStore:
        """With a file tier in `directory`, or without. Raises: HostFailed, BadConfig: of the file; OSError."""
        if directory is None:
            return cls(memory_bytes, None, correlated_s=correlated_s)
        directory.mkdir(parents=True, exist_ok=True)
        slot_bytes = framed_bytes(chunk_bytes)
        file = Slab.open(
            directory / "stripes",
            max(disk_bytes, LEAST_SLOTS * 2 * slot_bytes),
            slot_bytes=slot_bytes,
            verify=lambda _, framed: is_intact(framed),
            correlated_s=correlated_s,
        )
        return cls(memory_bytes, file, correlated_s=correlated_s)

    @property
    def held_bytes(self) -> int:
        """In memory."""
        return self._held_bytes

    def get_nowait(self, key: bytes) -> Framed | None:
        """The stripe, if it is in memory."""
        framed = self._held.get(key)
        if framed is not None:
            self.memory_hits += 1
            self._order.use(key, time.monotonic())
            if self._file is not None:
                self._file.touch(key)
        return framed

    def is_in_file(self, key: bytes) -> bool:
        """Whether `get_from_file` may have it; if not, this is a miss."""
        if self._file is not None and key in self._file:
            return True
        self.misses += 1
        return False

    async def get_from_file(self, key: bytes) -> bytes | None:
        """The stripe, now in memory, too."""
        assert self._file is not None
        framed = await asyncio.get_running_loop().run_in_executor(self._reads, self._file.get, key)
        if framed is None:
            self.misses += 1
            return None
        self.file_hits += 1
        self._hold(key, framed)
        return framed

    def put_nowait(self, key: bytes, framed: Framed) -> None:
        """Take a stripe in, in place of one with the same key. The caller has verified it."""
        self.puts += 1
        self._hold(key, framed)
        if self._file is None:
            return
        if self._unwritten >= MOST_UNWRITTEN:
            self.dropped_writes += 1
            self._file.discard(key)
            return
        self._unwritten += 1
        written = asyncio.get_running_loop().run_in_executor(self._writes, self._write, self._file, key, framed)
        written.add_done_callback(self._has_written)

    def close(self) -> None:
        """Wait for the threads and release the file."""
        self._reads.shutdown()
        self._writes.shutdown()
        if self._file is not None:
            self._file.close()

    def _hold(self, key: bytes, framed: Framed) -> None:
        if (old := self._held.pop(key, None)) is not None:
            self._held_bytes -= len(old) + _OVERHEAD_BYTES
        self._held[key] = framed
        self._held_bytes += len(framed) + _OVERHEAD_BYTES
        self._order.use(key, time.monotonic())
        while self._held_bytes > self._memory_bytes:
            victim = self._order.evict()
            self._held_bytes -= len(self._held.pop(victim)) + _OVERHEAD_BYTES

    @staticmethod
    def _write(file: Slab, key: bytes, framed: Framed) -> None:
        file.discard(key)  # the same key can have another stripe of its chunk
        file.put(key, framed)

    def _has_written(self, _: object) -> None:
        self._unwritten -= 1
