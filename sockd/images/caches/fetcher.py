"""Fetching chunks for a worker: from L1, else from L2, else from the origin; upper tiers are filled from lower ones.

Blocking, for several threads. What is returned has been verified: by the client of L2 or by the store, before it was written to
L1. Threads that need the same chunk at the same time cause one fetch.
A cache that fails, lies or is slow costs time only; the origin's errors are the caller's.

    L1 hit        a read of the slab, in the caller's thread
    L2 hit        then written to the slab
    origin        then written to the slab, and to L2 by another thread
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

import msgspec

from sockd.base.errors import Tampered
from sockd.images.caches.l2_client import L2Client
from sockd.images.caches.slab import Slab
from sockd.images.chunks.chunk import CHUNK_BYTES, is_named

MOST_ORIGIN_REQUESTS = 16
"""At a time."""
MOST_REMEMBERED = 65_536
"""Chunks whose number of origin requests is kept: 32 GiB of them."""
KEPT_LATENCIES = 4096
"""How many latencies of each tier are kept, the last ones."""
_log = logging.getLogger(__name__)


class Origin(Protocol):
    """What the fetcher needs of a chunk store."""

    def get(self, root: str, name: bytes) -> bytes:
        """The ciphertext, verified. Raises: StoreUnavailable, ChunkMissing, Tampered."""


class TierCounters(msgspec.Struct):
    """One tier since the start. Times are of the last fetches that it served."""

    fetches: int = 0
    bytes: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0


class FetchCounters(msgspec.Struct):
    """What fetches cost."""

    l1: TierCounters
    l2: TierCounters
    origin: TierCounters
    joined: int
    """Fetches that waited for another thread's fetch of the same chunk."""
    failed: int
    origin_requests: int
    origin_chunks: int
    """Distinct chunks that were asked of the origin."""
    wrong_chunks: int
    """From the origin, refused."""

    @property
    def requests_per_chunk(self) -> float:
        """Origin requests per distinct chunk."""
        return self.origin_requests / self.origin_chunks if self.origin_chunks else 0.0


class Fetcher:
    """The caches of one worker, and its origin."""

    def __init__(
        self,
        origin: Origin,
        *,
        l1: Slab | None = None,
        l2: L2Client | None = None,
        most_origin_requests: int = MOST_ORIGIN_REQUESTS,
    ) -> None:
        """Args: l1, l2: owned from now on; None: there is no such cache."""
        self._origin = origin
        self._l1 = l1
        self._l2 = l2
        self._lock = threading.Lock()
        self._running: dict[bytes, Future[bytes]] = {}
        self._origin_slots = threading.BoundedSemaphore(most_origin_requests)
        self._asked: OrderedDict[bytes, None] = OrderedDict()
        self._tiers = {"l1": _Tier(), "l2": _Tier(), "origin": _Tier()}
        self._joined = self._failed = self._origin_requests = self._origin_chunks = self._wrong_chunks = 0

    def fetch(self, root: str, name: bytes) -> bytes:
        """The chunk's ciphertext.

        Args: root: of the store; caches do not know roots.

        Raises: StoreUnavailable, ChunkMissing; Tampered: the origin has other bytes under this name."""
        begun = time.monotonic()
        if self._l1 is not None and (chunk := self._l1.get(name)) is not None:
            self._served("l1", chunk, begun)
            return chunk
        with self._lock:
            running = self._running.get(name)
            if running is None:
                flight = self._running[name] = Future()
            else:
                self._joined += 1
        return self._fly(root, name, flight) if running is None else running.result()

    def read(self, root: str, name: bytes, offset: int, size: int) -> bytes:
        """At most `size` bytes of the ciphertext from `offset`. Raises: as `fetch`."""
        begun = time.monotonic()
        if self._l1 is not None and (part := self._l1.read(name, offset, size)) is not None:
            self._served("l1", part, begun)
            return part
        return self.fetch(root, name)[offset : offset + size]

    def is_local(self, name: bytes) -> bool:
        """Whether L1 has the chunk."""
        return self._l1 is not None and name in self._l1

    @property
    def free_slots(self) -> int:
        """How many chunks L1 takes in without evicting another."""
        return self._l1.free_slots if self._l1 is not None else 0

    def counters(self) -> FetchCounters:
        """A snapshot."""
        with self._lock:
            return FetchCounters(
                **{name: tier.counters() for name, tier in self._tiers.items()},
                joined=self._joined,
                failed=self._failed,
                origin_requests=self._origin_requests,
                origin_chunks=self._origin_chunks,
                wrong_chunks=self._wrong_chunks,
            )

    def close(self) -> None:
        """Release the caches; no fetch is under way."""
        if self._l2 is not None:
            self._l2.close()
        if self._l1 is not None:
            self._l1.close()

    def _fly(self, root: str, name: bytes, flight: Future[bytes]) -> bytes:
        """The fetch that other threads wait for."""
        try:
            chunk = self._fetch(root, name)
        except BaseException as error:
            with self._lock:
                self._failed += 1
                del self._running[name]
            flight.set_exception(error)
            raise
        if self._l1 is not None:
            self._l1.put(name, chunk)
        # After the chunk is in L1: a thread that finds neither would fetch it again.
        with self._lock:
            del self._running[name]
        flight.set_result(chunk)
        return chunk

    def _fetch(self, root: str, name: bytes) -> bytes:
        begun = time.monotonic()
        # Another thread's fetch may have ended between this one's look into L1 and its flight.
        if self._l1 is not None and (chunk := self._l1.get(name)) is not None:
            self._served("l1", chunk, begun)
            return chunk
        if self._l2 is not None and (chunk := self._from_l2(self._l2, name)) is not None:
            self._served("l2", chunk, begun)
            return chunk
        chunk = self._from_origin(root, name)
        self._served("origin", chunk, begun)
        if self._l2 is not None:
            self._l2.put_later(name, chunk)
        return chunk

    @staticmethod
    def _from_l2(l2: L2Client, name: bytes) -> bytes | None:
        try:
            return l2.get(name)
        except Exception:  # a failure of a cache is not the caller's, whatever it is
            _log.exception("a read from the cache nodes failed; the origin is asked instead")
            return None

    def _from_origin(self, root: str, name: bytes) -> bytes:
        with self._origin_slots:
            with self._lock:
                self._origin_requests += 1
                if name not in self._asked:
                    self._origin_chunks += 1
                self._asked[name] = None
                if len(self._asked) > MOST_REMEMBERED:
                    self._asked.popitem(last=False)
            try:
                return self._origin.get(root, name)
            except Tampered:
                with self._lock:
                    self._wrong_chunks += 1
                raise

    def _served(self, tier: str, data: bytes, begun: float) -> None:
        took_s = time.monotonic() - begun
        with self._lock:
            self._tiers[tier].count(len(data), took_s)


class _Tier:
    def __init__(self) -> None:
        self._fetches = self._bytes = 0
        self._latencies: deque[float] = deque(maxlen=KEPT_LATENCIES)

    def count(self, size: int, took_s: float) -> None:
        self._fetches += 1
        self._bytes += size
        self._latencies.append(took_s)

    def counters(self) -> TierCounters:
        times = sorted(self._latencies)
        if not times:
            return TierCounters(self._fetches, self._bytes)
        return TierCounters(
            self._fetches, self._bytes, times[len(times) // 2] * 1000, times[len(times) * 99 // 100] * 1000
        )


def open_fetcher(
    origin: Origin, *, l1: Path | int | None = None, l1_bytes: int = 0, nodes: tuple[str, ...] = (), token: str = ""
) -> Fetcher:
    """A fetcher with the caches that are configured.

    Args: l1: the file of L1, or its descriptor; nodes: of L2; token: of the nodes.

    Raises: HostFailed, BadConfig: of the file or the nodes' addresses; OSError."""
    l2 = L2Client(nodes, token=token) if nodes else None
    slab = open_l1(l1, l1_bytes) if l1 is not None else None
    return Fetcher(origin, l1=slab, l2=l2)


def open_l1(place: Path | int, size_bytes: int) -> Slab:
    """The slab of a worker's chunks. Raises: as `Slab.open`."""
    return Slab.open(place, size_bytes, slot_bytes=CHUNK_BYTES, verify=is_named)
