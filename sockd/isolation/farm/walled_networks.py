"""The networks of walled Zygotes: Zygotes that are in an empty network namespace and cannot leave it for the host's.

So they may have imported packages and still fork sandboxes that must not reach the host's network. Each of them forks sandboxes
of one kind, in network namespaces that its own user namespace owns: it may enter no others (setns(2)).
"""

from __future__ import annotations

import asyncio

from sockd.isolation.farm.namespace_maker import NamespaceMaker, ZygoteNamespaces
from sockd.isolation.networks.endpoint import Endpoint
from sockd.isolation.networks.endpoint_pool import EndpointPool
from sockd.isolation.networks.networks import Networks
from sockd.isolation.roots.program import Network


class Wall:
    """What the Zygotes of one kind of network have in common. `source` for each of them."""

    def __init__(self, network: Network, networks: Networks, maker: NamespaceMaker) -> None:
        """Args: network: of the sandboxes, not "host"."""
        self.network = network
        self.networks = networks
        self._maker = maker

    def source(self, pidfd: int) -> EndpointSource:
        """Args: pidfd: a Zygote's, copied. Raises: OSError."""
        return EndpointSource(self, ZygoteNamespaces(self._maker, pidfd))


class EndpointSource:
    """Endpoints for the sandboxes of one Zygote. Made when the Zygote is; `close` with it."""

    def __init__(self, wall: Wall, namespaces: ZygoteNamespaces) -> None:
        """Args: namespaces: owned from now on."""
        self.network = wall.network
        self._networks = wall.networks
        self._namespaces = namespaces
        self._pool: EndpointPool | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False

    async def home(self) -> int:
        """An empty namespace for the Zygote itself; its descriptor, the caller's. Raises: as `NamespaceMaker.make`."""
        (namespace,) = await self._namespaces.make(1)
        return namespace

    async def endpoint(self) -> Endpoint:
        """One for a sandbox, the caller's. Raises: NoCapacity, NetworkUnavailable, SandboxFailed, OSError."""
        pool = self._pool or await self._open()
        endpoint = pool.take()
        if endpoint is None:
            endpoint = await pool.make()
            endpoint.was_ready = False
        return endpoint

    def close(self) -> None:
        """Safe to call twice."""
        self._is_closed = True
        pool, self._pool = self._pool, None
        if pool is not None:
            self._networks.close_pool(pool)
        self._namespaces.close()

    async def _open(self) -> EndpointPool:
        async with self._opening:
            if self._pool is None:
                pool = await self._networks.pool(self._namespaces, has_network=self.network != "none")
                if self._is_closed:
                    self._networks.close_pool(pool)
                    raise OSError("the Zygote is gone")
                self._pool = pool
        return self._pool
