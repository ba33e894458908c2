"""The cache nodes of a group: this worker's own, and the list of all, as the workers report them.

Owns the cache node, and the task that opens its port. A node that does not start costs nothing but its stripes.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack

from sockd.base.blocking import in_thread
from sockd.base.config import Config
from sockd.base.errors import BadConfig, SockdError
from sockd.events.repeated_warnings import RepeatedWarnings
from sockd.http.server.listening.sockets import addresses_of, url_of
from sockd.images.agent_keeper.cache_node import CacheNode
from sockd.images.caches.node_set import node_address
from sockd.linux.network import loopback
from sockd.worker.builders.image_parts import ImageParts

AGAIN_S = 5.0
"""After the port could not be opened: the worker that this one follows may have it still."""
_log = logging.getLogger(__name__)


class GroupCache:
    """`start`, `aclose`."""

    def __init__(self, config: Config, images: ImageParts) -> None:
        self._config = config
        self._images = images
        self._warnings = RepeatedWarnings(_log)
        self._starting: asyncio.Task[None] | None = None
        self._node: CacheNode | None = None
        self._nodes: Mapping[str, str] = {}
        self.address = ""
        """Where other workers reach this one's node; empty: it has none now."""

    def start(self) -> None:
        """Start the node, unless there is to be none, in the background."""
        if self._config.cache_node_bytes:
            self._starting = asyncio.create_task(self._start(), name="start of the cache node")

    def follow(self, nodes: Mapping[str, str]) -> None:
        """Have chunks from these nodes from now on. Args: nodes: the address of each live worker's node, by its worker."""
        if nodes == self._nodes:
            return
        self._nodes = nodes
        usable = {}
        for worker, address in nodes.items():
            try:
                node_address(address)
                usable[worker] = address
            except BadConfig as error:
                _log.warning("the cache node of worker %s is not used: %s", worker, error.message)
        self._images.use_nodes(usable)

    async def aclose(self) -> None:
        """End the node."""
        self.address = ""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        self._warnings.close()
        if self._node is not None:
            await self._node.aclose()

    async def _start(self) -> None:
        while self._node is None:
            try:
                host, listening = await self._listen()
                try:
                    self._node = await self._images.start_node(listening, self._config.cache_node_bytes)
                except BaseException:
                    listening.close()
                    raise
                self.address = f"{loopback.show(host)}:{listening.getsockname()[1]}"
            except (OSError, SockdError) as error:
                text = f"there is no cache node on this worker: {error}; it is tried again in {AGAIN_S:g} s"
                self._warnings.warn("the cache node", text)
                await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=AGAIN_S)

    async def _listen(self) -> tuple[str, socket.socket]:
        """Return the address for other workers, and the socket. Raises: OSError, BadConfig."""
        listen = self._config.http.listen
        bound = (await in_thread(addresses_of, listen.rpartition(":")[0].strip("[]")))[0]
        shown = (self._config.group.address or url_of(listen, 0).partition("://")[2]).rpartition(":")[0].strip("[]")
        address = ipaddress.ip_address((await in_thread(addresses_of, shown))[0])
        family = socket.AF_INET6 if ":" in bound else socket.AF_INET
        listening = socket.create_server((bound, self._config.group.cache_node_port), family=family)
        listening.setblocking(False)
        return str(address), listening


def open_group_cache(config: Config, images: ImageParts, stack: AsyncExitStack) -> GroupCache | None:
    """Start what a worker of a group has of its cache nodes on `stack`; None: it is in no group, or its settings name nodes."""
    if not config.group.name or config.images.nodes:
        return None
    cache = GroupCache(config, images)
    cache.start()
    stack.push_async_callback(cache.aclose)
    return cache
