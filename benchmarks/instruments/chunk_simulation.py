"""Hit rates of L1 and L2 under traces of image starts: for tests, benchmarks and the choice of cache sizes.

Pure: simulates which chunks the caches hold, without bytes. Production code does not import it.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from sockd.images.caches.lru_k import Lru2

Chunk = tuple[str, int]
HOT = "hot"


class Cache(Protocol):
    """The set of chunks that a cache holds."""

    def has(self, chunk: Chunk, now: float) -> bool:
        """Whether the chunk is there; counts as a use, and takes it in otherwise."""


class LruCache:
    """The cache that the paper compares with."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: OrderedDict[Chunk, None] = OrderedDict()

    def has(self, chunk: Chunk, now: float) -> bool:
        if chunk in self._held:
            self._held.move_to_end(chunk)
            return True
        if len(self._held) >= self._capacity:
            self._held.popitem(last=False)
        self._held[chunk] = None
        return False


class Lru2Cache:
    """A cache with the order of eviction of slabs and nodes."""

    def __init__(self, capacity: int, *, correlated: float = 0.0) -> None:
        self._capacity = capacity
        self._order: Lru2[Chunk] = Lru2(
            remembered=capacity,
            correlated=correlated,
            shard_of=lambda chunk: chunk[1],  # hash() differs between runs
        )

    def has(self, chunk: Chunk, now: float) -> bool:
        is_there = chunk in self._order
        if not is_there and len(self._order) >= self._capacity:
            self._order.evict()
        self._order.use(chunk, now)
        return is_there


def scans_between_hot_reads(*, hot: int = 400, rounds: int = 60, seed: int = 1) -> Iterator[Chunk]:
    """Reads of images that start all the time, skewed by popularity, and in each round one image that starts once a day."""
    draw = random.Random(seed)
    weights = [1 / (rank + 1) ** 0.8 for rank in range(hot)]
    for number in range(rounds):
        yield from ((HOT, rank) for rank in draw.choices(range(hot), weights, k=400))
        yield from ((f"daily {number}", index) for index in range(200))


def hot_hit_rate(trace: Iterable[Chunk], cache: Cache) -> float:
    """Return the hit rate of the reads of hot chunks."""
    hits = reads = 0
    for now, chunk in enumerate(trace):
        is_hit = cache.has(chunk, now)
        if chunk[0] == HOT:
            reads += 1
            hits += is_hit
    return hits / reads


@dataclass(frozen=True, slots=True)
class Fleet:
    """Workers that start images from a population, each with an L1, over one L2."""

    workers: int = 20
    images: int = 150
    zipf: float = 1.1
    """Exponent of the images' popularity."""
    bases: int = 10
    """Base images; each image is made from one of them."""
    base_chunks: int = 60
    own_chunks: int = 40
    """Chunks that one start reads of its own image alone."""
    starts: int = 4_000
    first_counted: int = 2_000
    """Starts before this one warm the caches."""
    daily_share: float = 0.005
    """Starts of images that start once."""


@dataclass(frozen=True, slots=True)
class HitRates:
    """Shares of all reads that a tier serves, and L2's own hit rate."""

    l1: float
    l2: float
    origin: float

    @property
    def l2_own(self) -> float:
        return self.l2 / (self.l2 + self.origin) if self.l2 + self.origin else 1.0


def fleet_hit_rates(fleet: Fleet, l1: Iterable[Cache], l2: Cache, *, seed: int = 1) -> HitRates:
    """Return the hit rates of a trace of starts on random workers, of images with Zipf-distributed popularity."""
    draw = random.Random(seed)
    local = list(l1)
    weights = list(accumulate(1 / (rank + 1) ** fleet.zipf for rank in range(fleet.images)))
    served = {"l1": 0, "l2": 0, "origin": 0}
    for start in range(fleet.starts):
        cache = local[draw.randrange(fleet.workers)]
        if draw.random() < fleet.daily_share:
            image, base = f"daily {start}", draw.randrange(fleet.bases)
        else:
            rank = draw.choices(range(fleet.images), cum_weights=weights)[0]
            image, base = f"image {rank}", rank % fleet.bases
        chunks = [(f"base {base}", index) for index in range(fleet.base_chunks)]
        chunks += [(image, index) for index in range(fleet.own_chunks)]
        for chunk in chunks:
            tier = "l1" if cache.has(chunk, start) else "l2" if l2.has(chunk, start) else "origin"
            if start >= fleet.first_counted:
                served[tier] += 1
    total = sum(served.values())
    return HitRates(served["l1"] / total, served["l2"] / total, served["origin"] / total)
