"""Breaks of the chunk caches: a probe of them, or a cache node (tests/support/images/chunk_probe.py)."""

from __future__ import annotations

from typing import Any

from sockd.images.caches import fetcher, l2_client, lru_k, node_store, slab
from tests.support.breaks.breaking import breaks


@breaks("no-parity")
def no_parity() -> None:
    """A chunk is read from the four nodes with its data alone."""
    slots = l2_client.L2Client._slots
    l2_client.L2Client._slots = lambda self, name: slots(self, name)[:4]  # type: ignore[method-assign]


@breaks("believes-nodes")
def believes_nodes() -> None:
    """What was joined from stripes is not verified."""
    l2_client.is_named = lambda *_, **__: True  # type: ignore[attr-defined]


@breaks("no-single-flight")
def no_single_flight() -> None:
    """Each thread that misses a chunk fetches it."""

    class Unshared(dict[bytes, Any]):
        def get(self, key: bytes, default: Any = None) -> Any:
            return None

        def __delitem__(self, key: bytes) -> None:
            self.pop(key, None)

    original = fetcher.Fetcher.__init__

    def init(self: fetcher.Fetcher, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._running = Unshared()

    fetcher.Fetcher.__init__ = init  # type: ignore[method-assign]


@breaks("trusts-l1")
def trusts_l1() -> None:
    """What an earlier process left in the file of L1 is served as it is."""
    slab.Slab._verified = lambda self, key, slot: self._read(key, slot, 0, slot.size)  # type: ignore[method-assign]


@breaks("plain-lru")
def plain_lru() -> None:
    """A cache evicts the least recently used, however often it was used."""
    lru_k.Lru2._victim = lambda self: min(self._last, key=self._last.__getitem__)  # type: ignore[method-assign]


@breaks("endless-node")
def endless_node() -> None:
    """A cache node keeps in memory whatever it is sent."""

    def hold(self: node_store.NodeStore, key: bytes, framed: node_store.Framed) -> None:
        self._held[key] = framed

    node_store.NodeStore._hold = hold  # type: ignore[method-assign]
