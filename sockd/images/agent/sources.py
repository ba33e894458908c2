"""Where the agent has chunks from: the L1 cache, the cache nodes, the store.

Without room for the L1 cache's file the agent keeps the last few chunks in memory, so that images are slow and not broken.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping

from sockd.base.errors import SockdError
from sockd.images.agent.agent_wire import Setup
from sockd.images.agent.chunk_fetches import RESERVED_THREADS, ChunkSource
from sockd.images.caches.fetcher import Fetcher, TierCounters, open_l1
from sockd.images.caches.l2_client import L2Client
from sockd.images.caches.slab import Slab
from sockd.images.chunks.store_settings import open_store

MOST_RECENT = 64
"""Chunks in memory without an L1 cache: 32 MB."""
_log = logging.getLogger(__name__)


class RecentChunks:
    """The chunks that were fetched last, in memory."""

    def __init__(self, most: int = MOST_RECENT) -> None:
        self._most = most
        self._held: OrderedDict[bytes, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, name: object) -> bool:
        return name in self._held

    def read(self, name: bytes, offset: int, size: int) -> bytes | None:
        """A part of the ciphertext, if it is here."""
        data = self._held.get(name)
        return None if data is None else data[offset : offset + size]

    def put(self, name: bytes, data: bytes) -> None:
        """Keep a verified chunk."""
        with self._lock:
            self._held[name] = data
            if len(self._held) > self._most:
                self._held.popitem(last=False)


class CachedSource:
    """A `ChunkSource` with a fetcher and what it has fetched."""

    def __init__(self, fetcher: Fetcher, slab: Slab | None, l2: L2Client) -> None:
        """Args: slab, l2: the fetcher's."""
        self._fetcher = fetcher
        self._l2 = l2
        self._slab = slab
        self._recent = RecentChunks()
        self._local: Slab | RecentChunks = slab if slab is not None else self._recent

    def read(self, name: bytes, offset: int, size: int) -> bytes | None:
        return self._local.read(name, offset, size)

    def has(self, name: bytes) -> bool:
        return name in self._local

    def has_room(self) -> bool:
        return self._slab is not None and len(self._slab) < self._slab.slots

    def fetch(self, root: str, name: bytes) -> bytes:
        data = self._fetcher.fetch(root, name)
        if self._slab is None:
            self._recent.put(name, data)
        return data

    def use_nodes(self, nodes: Mapping[str, str]) -> None:
        self._l2.use_nodes(nodes)

    def counters(self) -> dict[str, float]:
        found = self._fetcher.counters()
        tiers: dict[str, TierCounters] = {"l1": found.l1, "l2": found.l2, "origin": found.origin}
        counted: dict[str, float] = {}
        for name, tier in tiers.items():
            counted[f"{name}_fetches"] = tier.fetches
            counted[f"{name}_bytes"] = tier.bytes
            counted[f"{name}_p50_ms"] = tier.p50_ms
            counted[f"{name}_p99_ms"] = tier.p99_ms
        counted["origin_requests"] = found.origin_requests
        counted["origin_chunks"] = found.origin_chunks
        counted["wrong_chunks"] = found.wrong_chunks
        if self._slab is not None:
            counted["l1_chunks"], counted["l1_slots"] = len(self._slab), self._slab.slots
            counted["l1_rejected"] = self._slab.rejected
        return counted


def open_source(setup: Setup, descriptors: list[int]) -> ChunkSource:
    """Args: descriptors: of the L1 file and, if it is one, of the store's directory. Raises: BadConfig."""
    settings = setup.source
    store = open_store(settings.store, directory_fd=descriptors[1] if setup.has_directory else None)
    slab = slab_of(descriptors[0], settings.l1_bytes)
    l2 = L2Client((), token=settings.token)
    l2.use_nodes(settings.nodes)
    fetcher = Fetcher(store, l1=slab, l2=l2, most_origin_requests=setup.prefetches + RESERVED_THREADS)
    return CachedSource(fetcher, slab, l2)


def slab_of(fd: int, size_bytes: int) -> Slab | None:
    """The L1 cache in a file; None: none is wanted (0 bytes), or the host has no room, which is logged."""
    if not size_bytes:
        return None
    try:
        return open_l1(fd, size_bytes)
    except (SockdError, OSError) as error:
        _log.warning("images are read without an L1 cache: %s", error)
        return None
