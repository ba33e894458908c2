"""The cache nodes as a client knows them now: which have the stripes of a chunk, and the connections to each.

The list may change while threads read. A node that stays keeps its connections and its place; that of a node which is gone is
closed, and a read under way counts its stripe as missing. Owns the connections.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import NamedTuple

from sockd.base.errors import BadConfig
from sockd.images.caches.node_connection import NodePool
from sockd.images.caches.placement import Placement


class _Nodes(NamedTuple):
    placement: Placement
    addresses: Mapping[str, str]
    pools: Mapping[str, NodePool]


class NodeSet:
    """The nodes of one client. Threads call `of` while one of them changes the list."""

    def __init__(self, nodes: Mapping[str, str], max_body_bytes: int) -> None:
        """Args: nodes: as of `change`. Raises: BadConfig: an address that is none."""
        self._max_body_bytes = max_body_bytes
        self._now = _Nodes(Placement(()), {}, {})
        self.change(nodes)

    def change(self, nodes: Mapping[str, str]) -> None:
        """Use these nodes from now on. For one caller at a time.

        Args: nodes: ADDRESS:PORT of each node by its name. Names decide which stripes a node has, so that one that comes back
            at another port has its own again.
        Raises: BadConfig: an address that is none; the list is as before."""
        before = self._now
        if dict(nodes) == before.addresses:
            return
        for address in nodes.values():
            node_address(address)
        pools = {name: self._pool(before, name, address) for name, address in nodes.items()}
        placement = before.placement if nodes.keys() == before.addresses.keys() else Placement(list(nodes))
        self._now = _Nodes(placement, dict(nodes), pools)
        for name, pool in before.pools.items():
            if pools.get(name) is not pool:
                pool.close()

    def of(self, name: bytes) -> list[NodePool]:
        """Return the connections to the nodes of a chunk's five stripes; none without nodes."""
        now = self._now
        return [now.pools[node] for node in now.placement.nodes_of(name)]

    def close(self) -> None:
        """Close the connections."""
        self.change({})

    def _pool(self, before: _Nodes, name: str, address: str) -> NodePool:
        if before.addresses.get(name) == address:
            return before.pools[name]
        return NodePool(address, *node_address(address), self._max_body_bytes)


def node_address(node: str) -> tuple[str, int]:
    """Address and port of a node. Names are not resolved: the agent's process has no resolver, and all workers must agree.

    Raises: BadConfig."""
    host, colon, port = node.rpartition(":")
    try:
        if not colon:
            raise ValueError("it has no port")
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        if not 0 < int(port) < 65536:
            raise ValueError(f"{port} is not a port")
    except ValueError as error:
        raise BadConfig(f"the cache node {node!r} is not ADDRESS:PORT: {error}") from None
    return str(address), int(port)
