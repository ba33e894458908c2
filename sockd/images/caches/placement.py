"""Which nodes hold the stripes of a chunk: consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, 2016).

Pure: the same list of nodes gives the same table in every worker, in any order of the list. Nodes have points on a ring; a
chunk belongs to one of PARTITIONS parts of the key space, and a partition to the first nodes on the ring after its own point,
without nodes that already have their share. A lost node moves its own part of the stripes, and few others.

A table of partitions, rather than loads of chunks, bounds loads without any communication between workers.
"""

from __future__ import annotations

import bisect
import hashlib
import math
from collections.abc import Sequence

from sockd.images.caches.stripes import STRIPES

PARTITIONS = 4096
POINTS = 256
"""Points of one node on the ring."""
EPSILON = 0.05
"""A node has at most this much more than the mean."""


class Placement:
    """The nodes of each chunk."""

    def __init__(self, nodes: Sequence[str], *, epsilon: float = EPSILON) -> None:
        """Args:
        nodes: their addresses; duplicates count once.
        epsilon: what the fullest node may have beyond the mean."""
        self.nodes = sorted(set(nodes))
        self._table = _table(self.nodes, epsilon)

    def nodes_of(self, name: bytes) -> tuple[str, ...]:
        """The nodes of a chunk's five stripes: distinct, unless there are fewer nodes; then they repeat. Empty without nodes."""
        return self._table[int.from_bytes(name[:4], "big") % PARTITIONS]


def _table(nodes: Sequence[str], epsilon: float) -> list[tuple[str, ...]]:
    if not nodes:
        return [()] * PARTITIONS
    distinct = min(STRIPES, len(nodes))
    ring = sorted((_point(f"{node}#{point}"), number) for number, node in enumerate(nodes) for point in range(POINTS))
    points = [point for point, _ in ring]
    limit = math.floor((1 + epsilon) * distinct * PARTITIONS / len(nodes)) if len(nodes) > distinct else PARTITIONS
    loads = [0] * len(nodes)
    table = []
    for partition in range(PARTITIONS):
        chosen: list[int] = []
        start = bisect.bisect(points, _point(f"partition {partition}"))
        for step in range(len(ring)):
            number = ring[(start + step) % len(ring)][1]
            if number not in chosen and loads[number] < limit:
                chosen.append(number)
                loads[number] += 1
                if len(chosen) == distinct:
                    break
        while len(chosen) < distinct:  # of the last partitions: fewer nodes than that have room
            number = min(set(range(len(nodes))) - set(chosen), key=loads.__getitem__)
            chosen.append(number)
            loads[number] += 1
        table.append(tuple(nodes[chosen[stripe % len(chosen)]] for stripe in range(STRIPES)))
    return table


def _point(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
