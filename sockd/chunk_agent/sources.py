"""Where the agent has chunks from. For now: a directory, and a cache in memory."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from pathlib import Path

from sockd.chunk_agent.agent_wire import Setup
from sockd.chunk_agent.chunk_fetches import ChunkSource
from sockd.chunks.chunk import CHUNK_BYTES, verify
from sockd.plain.errors import ChunkMissing, StoreUnavailable


class MemorySource:
    """Chunks of a directory store, the last of them in memory."""

    def __init__(self, directory: Path, cache_bytes: int) -> None:
        self._directory = directory
        self._most = max(cache_bytes // CHUNK_BYTES, 16)
        self._held: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def read(self, name: bytes, offset: int, size: int) -> bytes | None:
        data = self._held.get(name)
        return None if data is None else data[offset : offset + size]

    def has(self, name: bytes) -> bool:
        return name in self._held

    def has_room(self) -> bool:
        return len(self._held) < self._most

    def fetch(self, root: str, name: bytes) -> bytes:
        text = name.hex()
        try:
            data = (self._directory / "roots" / root / text[:2] / text).read_bytes()
        except FileNotFoundError:
            raise ChunkMissing("of this worker", root, name) from None
        except OSError as error:
            raise StoreUnavailable("of this worker", str(error.strerror)) from None
        verify(name, data)
        with self._lock:
            self._counts["from_origin"] += 1
            self._held[name] = data
            if len(self._held) > self._most:
                self._held.popitem(last=False)
        return data

    def counters(self) -> dict[str, int]:
        return dict(self._counts)


def open_source(setup: Setup, descriptors: list[int]) -> ChunkSource:
    """Args: descriptors: of the L1 file, and of the store's directory."""
    return MemorySource(Path(f"/proc/self/fd/{descriptors[1]}"), setup.source.l1_bytes)
