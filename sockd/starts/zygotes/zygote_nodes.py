"""The nodes of one worker's Zygote tree: which there are, and which of them are roots.

Owns the nodes. Knows nothing of how they are made and chosen.
"""

from __future__ import annotations

from sockd.isolation.farm.control import ZygoteGone
from sockd.isolation.farm.zygote import Zygote
from sockd.isolation.roots.program import HOST_LINEAGE, Lineage
from sockd.starts.zygotes.zygote_node import ZygoteNode


class ZygoteNodes:
    """All nodes, and the root of each lineage that has one."""

    def __init__(self) -> None:
        self.all: list[ZygoteNode] = []
        """The roots first, the host's before the others."""
        self.roots: dict[Lineage, ZygoteNode] = {}

    def add_root(self, lineage: Lineage, zygote: Zygote) -> ZygoteNode:
        """Make a node of a new root Zygote. Raises: ZygoteGone: it has ended already."""
        if not zygote.alive:
            raise ZygoteGone("the root Zygote ended as soon as it was there")
        node = ZygoteNode(zygote, frozenset(), None, lineage=lineage)
        self.all.insert(0 if lineage == HOST_LINEAGE else len(self.roots), node)
        self.roots[lineage] = node
        return node

    def root_of(self, lineage: Lineage) -> ZygoteNode:
        """Return the root of a lineage. Raises: ZygoteGone while it is being made."""
        root = self.roots.get(lineage)
        if root is None:
            raise ZygoteGone("the root Zygote is being restarted")
        return root

    def of(self, lineage: Lineage) -> list[ZygoteNode]:
        """Return the nodes that serve functions of this lineage."""
        return [node for node in self.all if node.lineage == lineage]

    def is_root(self, node: ZygoteNode) -> bool:
        """Return whether a node is the root of its lineage now."""
        return self.roots.get(node.lineage) is node

    def remove(self, node: ZygoteNode) -> None:
        """Evict a node: its sandboxes and child Zygotes live on; the children hang below its parent from now on."""
        self.all.remove(node)
        if self.is_root(node):
            del self.roots[node.lineage]
        for other in self.all:
            if other.parent is node:
                other.parent = node.parent
        node.close()

    def close(self) -> None:
        """End all Zygotes and spares."""
        for node in reversed(self.all):
            node.close()
        self.all.clear()
        self.roots.clear()
