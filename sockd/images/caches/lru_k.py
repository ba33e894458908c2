"""LRU-2: which key a full cache gives up (O'Neil, O'Neil and Weikum, SIGMOD '93, with K = 2).

Pure: knows keys and times, holds no data. The victim is the key whose last but one use is oldest. Keys that were used once go
first, in the order of their uses, so that a scan over data that is not used again evicts only other data of the scan.

Two facts from the paper that the rule needs to work:
    Uses of one key shortly after each other are one use (correlated references): a start reads a chunk in several parts.
    Uses are remembered beyond eviction, for a bounded number of keys (retained information): otherwise no key of a full cache
    could ever be used twice.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
_NEVER = float("-inf")
_SLACK = 64
SHARD_KEYS = 256
"""Evicted keys that are remembered in one table."""


class Lru2(Generic[K]):
    """The order of eviction of one cache. Times are the caller's and never go back; their unit is the caller's, too."""

    def __init__(self, *, remembered: int, correlated: float = 0.0, shard_of: Callable[[K], int] = hash) -> None:
        """Args:
        remembered: evicted keys whose last use is kept.
        correlated: uses of a key at most this long after each other are one.
        shard_of: a number of a key; keys are remembered in shards by it."""
        self._correlated = correlated
        self._last: dict[K, float] = {}
        self._before: dict[K, float] = {}
        """The end of the use before the last, of keys with two uses."""
        self._once: OrderedDict[K, None] = OrderedDict()
        """Keys with one use, the least recently used first."""
        self._queue: list[tuple[float, int, K]] = []
        """A heap with one valid entry for each key with two uses: the use before the last when the entry was made, which is at
        most the current one. `_victim` brings the entries up to date that reach the top."""
        self._entry: dict[K, int] = {}
        """The number of each key's valid entry."""
        self._number = 0
        self._evicted = _Remembered(remembered, shard_of)

    def __len__(self) -> int:
        return len(self._last)

    def __contains__(self, key: object) -> bool:
        return key in self._last

    def use(self, key: K, now: float) -> None:
        """The cache has served this key, or has taken it in."""
        last = self._last.get(key)
        if last is None:
            last = self._evicted.pop(key)
            self._once[key] = None
        self._last[key] = now
        if now - last <= self._correlated:
            if key in self._once:
                self._once.move_to_end(key)
            return
        if last == _NEVER:
            return
        self._before[key] = last
        if key in self._once:
            del self._once[key]
            self._push(last, key)

    def evict(self) -> K:
        """Remove and return the victim. Raises: KeyError: the cache is empty."""
        key = self._victim()
        last = self._last[key]
        self.discard(key)
        self._evicted.add(key, last)
        return key

    def discard(self, key: K) -> None:
        """Forget a key that the cache no longer holds; the key may be unknown."""
        self._last.pop(key, None)
        self._before.pop(key, None)
        self._entry.pop(key, None)
        self._once.pop(key, None)

    def _victim(self) -> K:
        if self._once:
            return next(iter(self._once))
        while self._queue:
            before, number, key = self._queue[0]
            if self._entry.get(key) != number:
                heapq.heappop(self._queue)
            elif self._before[key] == before:
                return key
            else:
                heapq.heapreplace(self._queue, (self._before[key], number, key))
        raise KeyError("no key to evict")

    def _push(self, before: float, key: K) -> None:
        self._number += 1
        self._entry[key] = self._number
        heapq.heappush(self._queue, (before, self._number, key))
        if len(self._queue) > 2 * len(self._entry) + _SLACK:  # entries of discarded keys that never reach the top
            self._queue = [(self._before[key], number, key) for key, number in self._entry.items()]
            heapq.heapify(self._queue)


class _Remembered(Generic[K]):
    """The last uses of evicted keys. The oldest of a shard go first.

    A dict that takes in as many keys as it loses is rebuilt again and again, each time in one step. With all keys of a node in
    one dict, this step took a millisecond and 200 page faults. Shards bound it."""

    def __init__(self, most: int, shard_of: Callable[[K], int]) -> None:
        shards = max(1, most // SHARD_KEYS)
        self._most_of_shard = most // shards
        self._shards: list[OrderedDict[K, float]] = [OrderedDict() for _ in range(shards)]
        self._shard_of = shard_of

    def add(self, key: K, last: float) -> None:
        shard = self._shards[self._shard_of(key) % len(self._shards)]
        shard[key] = last
        if len(shard) > self._most_of_shard:
            shard.popitem(last=False)

    def pop(self, key: K) -> float:
        """The last use, or _NEVER."""
        return self._shards[self._shard_of(key) % len(self._shards)].pop(key, _NEVER)
