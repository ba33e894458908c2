"""A simulated Zygote tree: ancestry, memory, and the input of an evictor.

Owns the simulated nodes. What one Zygote imported is shared by all its descendants and freed with the last of them;
each Zygote has `NODE_OVERHEAD_BYTES` of its own. Knows no policy and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import fsum

from sockd.starts.zygotes.eviction import NodeStats
from sockd.starts.zygotes.rate import RATE_TAU_S, DecayingRate
from sockd.starts.zygotes.selection import NODE_OVERHEAD_BYTES, NewNode, PackageCost

CANARY_S = 0.02
"""Making a Zygote beyond its imports: fork, canary fork, accounting."""


@dataclass(slots=True, eq=False)
class Block:
    """The pages of what one Zygote imported, shared by it and its descendants."""

    bytes: int
    holders: int = 0


@dataclass(slots=True, eq=False)
class SimulatedNode:
    """One Zygote."""

    id: str
    parent_id: str | None
    imports: frozenset[str]
    depth: int
    blocks: list[Block]
    bytes: int
    """Bytes of all that the Zygote and its ancestors imported: its forks copy the page tables for them."""
    created_s: float
    ready_s: float
    rate: DecayingRate
    last_used_s: float = 0.0
    hits: int = 0
    verdicts: dict[frozenset[str], bool] = field(default_factory=dict)
    """Whether it may serve a closure, once that was asked."""


class SimulatedTree:
    """The nodes, the memory they take, and what making them took."""

    def __init__(self, costs: Mapping[str, PackageCost]) -> None:
        """A tree with its root only."""
        self._costs = costs
        self.root = SimulatedNode("root", None, frozenset(), 0, [], 0, 0.0, 0.0, DecayingRate(RATE_TAU_S))
        self.nodes: dict[str, SimulatedNode] = {self.root.id: self.root}
        self.used_bytes = NODE_OVERHEAD_BYTES
        self.made = 0
        self.making_s = 0.0
        """CPU spent on importing in new Zygotes."""

    def count_use(self, node: SimulatedNode, now_s: float) -> None:
        """One start from a node; a hit for its ancestors as well, as the released SOCK counts."""
        node.rate.hit(now_s)
        node.last_used_s = now_s
        above: SimulatedNode | None = node
        while above is not None:
            above.hits += 1
            above = self.nodes.get(above.parent_id or "")

    def start(self, plan: NewNode, now_s: float) -> SimulatedNode:
        """Makes a planned node; it can be used from its `ready_s` on."""
        parent = self.nodes[plan.parent_id]
        size, seconds = self.bytes_of(plan.added), self.seconds_of(plan.added)
        self.made += 1
        self.making_s += seconds
        node = SimulatedNode(
            id=f"zygote-{self.made}",
            parent_id=parent.id,
            imports=plan.imports,
            depth=parent.depth + 1,
            blocks=[*parent.blocks, Block(size)],
            bytes=parent.bytes + size,
            created_s=now_s,
            ready_s=now_s + CANARY_S + seconds,
            # It starts with what is known: the demand it was planned for, or (SOCK) the one use that it was made for.
            rate=DecayingRate(RATE_TAU_S, now_s=now_s, rate=max(plan.rate, 1 / RATE_TAU_S)),
            last_used_s=now_s,
            hits=1,
        )
        for block in node.blocks:
            block.holders += 1
        self.used_bytes += NODE_OVERHEAD_BYTES + size
        self.nodes[node.id] = node
        return node

    def evict(self, node_id: str) -> None:
        """End a node; its descendants live on, and so do the pages they share."""
        node = self.nodes.pop(node_id)
        self.used_bytes -= NODE_OVERHEAD_BYTES
        for block in node.blocks:
            block.holders -= 1
            if not block.holders:
                self.used_bytes -= block.bytes

    def stats(self, now_s: float) -> list[NodeStats]:
        """What an evictor sees."""
        return [
            NodeStats(
                id=node.id,
                parent_id=node.parent_id,
                imports=node.imports,
                unique_bytes=NODE_OVERHEAD_BYTES + sum(block.bytes for block in node.blocks if block.holders == 1),
                recent_rate=node.rate.at(now_s),
                import_seconds_saved=self.seconds_of(node.imports - self._instead(node)),
                last_used_s=node.last_used_s,
                created_s=node.created_s,
                hits=node.hits,
                provisioning=node.ready_s > now_s,
            )
            for node in self.nodes.values()
        ]

    def seconds_of(self, keys: Iterable[str]) -> float:
        """Import time of these; the same whatever their order. A place on sys.path costs nothing."""
        return fsum(self._costs[key].seconds for key in keys if key in self._costs)

    def bytes_of(self, keys: Iterable[str]) -> int:
        """Memory of what these import."""
        return sum(self._costs[key].bytes for key in keys if key in self._costs)

    def _instead(self, node: SimulatedNode) -> frozenset[str]:
        """The packages of the Zygote that would serve if `node` were gone."""
        most: frozenset[str] = frozenset()
        for other in self.nodes.values():
            if len(other.imports) > len(most) and other.imports < node.imports:
                most = other.imports
        return most
