"""Sequences of chunk reads, as images that start produce them, and the hit rate of a cache that serves one."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator

from sockd.chunk_caches.lru_k import Lru2

HOT_CHUNKS = 400
HOT = "hot"


def scans_between_hot_reads(*, rounds: int = 60, seed: int = 1) -> Iterator[tuple[str, int]]:
    """Reads of images that start all the time, skewed by popularity, and each round one image that runs once a day."""
    draw = random.Random(seed)
    weights = [1 / (rank + 1) ** 0.8 for rank in range(HOT_CHUNKS)]
    for round_number in range(rounds):
        yield from ((HOT, rank) for rank in draw.choices(range(HOT_CHUNKS), weights, k=400))
        yield from ((f"daily {round_number}", index) for index in range(200))


def hit_rate_lru2(trace: Iterator[tuple[str, int]], capacity: int, *, correlated: float = 0.0) -> float:
    """Of the hot reads."""
    order: Lru2[tuple[str, int]] = Lru2(remembered=capacity, correlated=correlated)
    hits = reads = 0
    for now, key in enumerate(trace):
        if key[0] == HOT:
            reads += 1
            hits += key in order
        if key not in order and len(order) == capacity:
            order.evict()
        order.use(key, now)
    return hits / reads


def hit_rate_lru(trace: Iterator[tuple[str, int]], capacity: int) -> float:
    """Of the hot reads."""
    order: OrderedDict[tuple[str, int], None] = OrderedDict()
    hits = reads = 0
    for key in trace:
        if key[0] == HOT:
            reads += 1
            hits += key in order
        if key not in order and len(order) == capacity:
            order.popitem(last=False)
        order[key] = None
        order.move_to_end(key)
    return hits / reads
