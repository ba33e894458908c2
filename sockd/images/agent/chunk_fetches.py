"""Chunks that are being fetched: each once at a time, reads before prefetches, in a bounded number of threads.

Owns the threads. A fetch is a blocking call of the `ChunkSource`; readers of the chunk wait with a callback, not with a thread.
Prefetches never occupy all threads. While the store is unavailable, a fetch that a read waits for is tried again until the outage
has lasted for `outage_s`; from then on the first failure is the answer.
"""

from __future__ import annotations

import enum
import heapq
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Protocol

from sockd.base.errors import SockdError, StoreUnavailable

RESERVED_THREADS = 4
"""For reads only."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""Between two attempts of one chunk."""
Waiter = Callable[[bytes | None, SockdError | None], None]
"""Called once, in any thread: the verified ciphertext, or why there is none."""


class ChunkSource(Protocol):
    """Where chunks come from. All methods are called from several threads."""

    def read(self, name: bytes, offset: int, size: int) -> bytes | None:
        """A part of the ciphertext, if this worker has the chunk. It has been verified. Does not wait for the network."""

    def has(self, name: bytes) -> bool:
        """Whether `read` would have it."""

    def has_room(self) -> bool:
        """Whether another chunk evicts none."""

    def fetch(self, root: str, name: bytes) -> bytes:
        """The whole ciphertext, verified; this worker has it afterwards.

        Raises: StoreUnavailable, ChunkMissing, Tampered."""

    def use_nodes(self, nodes: Mapping[str, str]) -> None:
        """Have chunks from other cache nodes from now on. Args: nodes: ADDRESS:PORT by name. Raises: BadConfig."""

    def counters(self) -> dict[str, float]:
        """What it counts, by name."""


class Urgency(enum.IntEnum):
    """Who wants a chunk; lower goes first."""

    READ = 0
    READ_AHEAD = 1
    PROFILE = 2
    FILL = 3


class _Fetch:
    """One chunk on its way. Guarded by the lock of its owner."""

    __slots__ = ("is_running", "name", "pause_s", "root", "urgency", "waiters")

    def __init__(self, root: str, name: bytes, urgency: Urgency) -> None:
        self.root = root
        self.name = name
        self.urgency = urgency
        self.waiters: list[Waiter] = []
        self.is_running = False
        self.pause_s = FIRST_PAUSE_S


class ChunkFetches:
    """`want` from any thread; `close` waits for the threads."""

    def __init__(self, source: ChunkSource, *, prefetches: int, outage_s: float) -> None:
        """Args: prefetches: most at a time; outage_s: how long reads outlast an unavailable store."""
        self._source = source
        self._prefetches = prefetches
        self._outage_s = outage_s
        self._changed = threading.Condition()
        self._fetches: dict[tuple[str, bytes], _Fetch] = {}
        self._queues: list[deque[_Fetch]] = [deque() for _ in Urgency]
        self._retries: list[tuple[float, int, _Fetch]] = []
        self._prefetching = 0
        self._outage_since_s: float | None = None
        self._is_closed = False
        self.last_arrival_s = 0.0
        """When a chunk last came (time.monotonic)."""
        self.last_read_s = 0.0
        """When a read last waited for a chunk."""
        self.counts: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=self._work, name=f"fetch {number}", daemon=True)
            for number in range(prefetches + RESERVED_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def want(self, root: str, name: bytes, urgency: Urgency, waiter: Waiter | None = None) -> None:
        """Have the chunk fetched, unless somebody has that done already."""
        with self._changed:
            if urgency is Urgency.READ:
                self.last_read_s = time.monotonic()
            fetch = self._fetches.get((root, name))
            if fetch is None:
                fetch = self._fetches[root, name] = _Fetch(root, name, urgency)
                self._queues[urgency].append(fetch)
                self._changed.notify()
            elif urgency < fetch.urgency and not fetch.is_running:
                fetch.urgency = urgency  # its place in the other queue is skipped
                self._queues[urgency].append(fetch)
                self._changed.notify()
            if waiter is not None:
                fetch.waiters.append(waiter)

    @property
    def waiting(self) -> int:
        """Chunks that are not there yet."""
        return len(self._fetches)

    def close(self) -> None:
        """No fetch begins any more; those that run end first. Waiters of the others are not called."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while fetch := self._take():
            self._run(fetch)

    def _run(self, fetch: _Fetch) -> None:
        is_prefetch = fetch.urgency is not Urgency.READ
        try:
            if is_prefetch and self._source.has(fetch.name):
                data, error = b"", None
            else:
                data, error = self._source.fetch(fetch.root, fetch.name), None
        except SockdError as failure:
            data, error = None, failure
        except Exception as failure:  # a bug; readers that wait must not wait for good
            data, error = None, SockdError(f"a chunk could not be fetched: {failure!r}")
        for waiter in self._ended(fetch, error, is_prefetch=is_prefetch):
            if data == b"":  # somebody wants the bytes since
                self.want(fetch.root, fetch.name, Urgency.READ, waiter)
            else:
                waiter(data, error)

    def _take(self) -> _Fetch | None:
        """The next to be fetched; None at the end."""
        with self._changed:
            while not self._is_closed:
                wait_s = self._requeue_due()
                if (fetch := self._next()) is not None:
                    fetch.is_running = True
                    self._prefetching += fetch.urgency is not Urgency.READ
                    return fetch
                self._changed.wait(wait_s)
            return None

    def _next(self) -> _Fetch | None:
        for urgency, queue in enumerate(self._queues):
            if urgency != Urgency.READ and self._prefetching >= self._prefetches:
                return None
            while queue:
                fetch = queue.popleft()
                if fetch.urgency == urgency and not fetch.is_running:
                    return fetch
        return None

    def _requeue_due(self) -> float | None:
        """Seconds until the next attempt of a chunk that could not be fetched."""
        now_s = time.monotonic()
        while self._retries and self._retries[0][0] <= now_s:
            fetch = heapq.heappop(self._retries)[2]
            fetch.is_running = False
            fetch.urgency = Urgency.READ
            self._queues[Urgency.READ].append(fetch)
        return self._retries[0][0] - now_s if self._retries else None

    def _ended(self, fetch: _Fetch, error: SockdError | None, *, is_prefetch: bool) -> list[Waiter]:
        """What is to be called; nothing if the chunk is tried again."""
        with self._changed:
            self._prefetching -= is_prefetch
            self._changed.notify()
            now_s = time.monotonic()
            if error is None:
                self._outage_since_s, self.last_arrival_s = None, now_s
                self.counts["prefetched" if is_prefetch else "fetched"] += 1
            else:
                self.counts[f"failed_{type(error).__name__}"] += 1
            if isinstance(error, StoreUnavailable):
                if self._outage_since_s is None:
                    self._outage_since_s = now_s
                if fetch.waiters and now_s + fetch.pause_s < self._outage_since_s + self._outage_s:
                    heapq.heappush(self._retries, (now_s + fetch.pause_s, id(fetch), fetch))
                    fetch.pause_s = min(2 * fetch.pause_s, LONGEST_PAUSE_S)
                    self._changed.notify_all()
                    return []
            del self._fetches[fetch.root, fetch.name]
            return fetch.waiters
