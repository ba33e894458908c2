"""Networks: the private networks of a worker's functions, as the rest of the worker knows them.

Owns the router, the functions' policies, and the pools of endpoints. The router is made when the first function needs it; what a
killed worker left is removed at `open`, whether or not one does.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass

from sockd.base.config import NetworkConfig
from sockd.base.errors import BadFunctionConfig, NetworkUnavailable
from sockd.isolation.networks import egress
from sockd.isolation.networks.configured import Configured
from sockd.isolation.networks.connection_shares import ENTRIES, ConnectionShares
from sockd.isolation.networks.demand import Demand
from sockd.isolation.networks.egress import Egress
from sockd.isolation.networks.endpoint import Reserved
from sockd.isolation.networks.endpoint_pool import EndpointPool, NamespaceMaker
from sockd.isolation.networks.host_addresses import ipv4_addresses
from sockd.isolation.networks.host_proxy import HostProxy
from sockd.isolation.networks.namespace_thread import have_nft
from sockd.isolation.networks.policy import Policy
from sockd.isolation.networks.resolver import Resolver
from sockd.isolation.networks.router import Router
from sockd.isolation.networks.ruleset import LIMITED, PROXIED, REFUSED, Limits, classes
from sockd.isolation.networks.uplink import remove_leftovers
from sockd.linux import capabilities
from sockd.linux.confined.confined_process import Jail
from sockd.linux.network import network_namespaces
from sockd.linux.network.netlink import NETFILTER, NetlinkSocket

ServeFunctions = Callable[[socket.socket], Awaitable[None]]
"""Serves functions on a socket that is bound to the gateway and is owned from now on."""
BACKLOG = 128
FORWARD = "ipv4/ip_forward"
TRACKED = "netfilter/nf_conntrack_max"
USUAL_TRACKED = 1 << 16
"""Where the kernel does not say how many connections it tracks, as it does not track any yet."""
NO_RESOLVER = "egress: names need a resolver, and this worker has none; give networks or addresses"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resolving:
    """How names are resolved: what the resolver's process stands on, its uid, and whom it asks."""

    jail: Jail
    uid: int
    nameservers: Sequence[str]


@dataclass(frozen=True, slots=True)
class Proxying:
    """How ports of the host are reached: what the proxy's process stands on, and its uid."""

    jail: Jail
    uid: int


class Networks:
    """`open`, `aclose`; between them `parse`, `recorded`, `policy`, `pool`, `adjust`, `view`."""

    def __init__(
        self,
        config: NetworkConfig,
        worker: str,
        reserve: Callable[[int], Reserved | None],
        resolving: Resolving | None = None,
        proxying: Proxying | None = None,
        is_short: Callable[[], bool] = lambda: False,
    ) -> None:
        """Args: worker: its id; reserve: sets so many bytes aside, or has none; resolving: None: names are not resolved;
            proxying: None: no port of the host is opened; is_short: memory is too scarce for `network.idle_pools`.

        Raises: BadConfig."""
        self._resolving = resolving
        self._resolver: Resolver | None = None
        self._proxying = proxying
        self._proxy: HostProxy | None = None
        self._serve: ServeFunctions | None = None
        self._policy_of: dict[str, Policy] = {}
        self._config = config
        self._worker = worker
        self._reserve = reserve
        self._is_short = is_short
        self.configured = Configured.of(config)
        self._opening = asyncio.Lock()
        self.router: Router | None = None
        """Once a function needs one."""
        self._policies: set[Policy] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pools: list[EndpointPool] = []
        self._closed_hits = self._closed_misses = 0
        """Hits and misses of pools that are closed."""

    @classmethod
    async def open(
        cls,
        config: NetworkConfig,
        worker: str,
        reserve: Callable[[int], Reserved | None],
        resolving: Resolving | None = None,
        proxying: Proxying | None = None,
        is_short: Callable[[], bool] = lambda: False,
    ) -> Networks:
        """Remove what a killed worker of this id left. Args: as the constructor's. Raises: BadConfig."""
        networks = cls(config, worker, reserve, resolving, proxying, is_short)
        if not capabilities.has(capabilities.CAP_NET_ADMIN):
            return networks  # it can neither have left any nor remove them
        try:
            await asyncio.to_thread(remove_leftovers, worker)
        except OSError as error:
            _log.warning("networks that a killed worker left could not be removed: %s", error)
        return networks

    def parse(self, entries: Sequence[str] | None) -> Egress:
        """A function's rules, as they are given. Args: entries: as in sockd.toml; None: the default.

        Raises: BadFunctionConfig."""
        rules = self.configured.parse(entries, ipv4_addresses())
        if rules.has_names and self._resolving is None:
            raise BadFunctionConfig(NO_RESOLVER)
        return rules

    def recorded(self, entries: Sequence[str] | None) -> tuple[Egress, Sequence[str]]:
        """Rules that an earlier daemon accepted, as far as this one's settings let them be, and what `parse` would say of them.

        Callers of a function have no part in the worker's settings, so nothing is raised."""
        rules, errors = egress.recorded(entries, denied=self.configured.closed)
        too_many = egress.excess(entries, self.configured.max_rules)
        unresolved = NO_RESOLVER if rules.has_names and self._resolving is None else ""
        unopened = [
            f"egress, host:{port}: is not open any more (network.host_ports)"
            for port in self.configured.unopened(rules)
        ]
        return rules, [*errors, *filter(None, (too_many, unresolved)), *unopened]

    async def policy(self, rules: Egress) -> Policy:
        """The rules of one function, in force; the caller closes it. Raises: NetworkUnavailable."""
        router = await self.ready()
        try:
            policy = await Policy.make(router, rules, self._policy_of, self._policy_gone)
        except OSError as error:
            raise NetworkUnavailable(str(error)) from error
        self._policies.add(policy)
        return policy

    async def pool(self, maker: NamespaceMaker, *, has_network: bool) -> EndpointPool:
        """A pool of endpoints for one Zygote's sandboxes; the caller closes it by `close_pool`.

        Args: has_network: False: endpoints without a link, for `network = "none"`. Raises: NetworkUnavailable."""
        router = await self.ready() if has_network else None
        demand = Demand(self._config.least_pool, self._config.pool)
        pool = EndpointPool(maker, router, demand, self._reserve, self._idle_share, self._is_short)
        self._pools.append(pool)
        pool.adjust()
        return pool

    def close_pool(self, pool: EndpointPool) -> None:
        """Its Zygote is gone. Safe to call twice."""
        if pool in self._pools:
            self._pools.remove(pool)
            self._closed_hits += pool.hits
            self._closed_misses += pool.misses
            self._spawn_task(pool.aclose())

    def adjust(self) -> None:
        """Every few seconds: as many ready endpoints as the last minute asked for, or `network.idle_pools` allows."""
        for pool in self._pools:
            pool.adjust()

    def spare_bytes(self) -> int:
        """Memory of ready endpoints beyond the demand of the last minute."""
        return sum(pool.spare_bytes for pool in self._pools)

    def make_room(self, need_bytes: int) -> int:
        """Close such endpoints until they give back so many bytes, at once. Returns: the bytes that are still missing."""
        for pool in self._pools:
            if need_bytes > 0:
                need_bytes -= pool.make_room(need_bytes)
        return max(0, need_bytes)

    def view(self) -> dict[str, int | bool]:
        """Numbers for /status and the metrics."""
        return {
            "private": self._config.private,
            "router": self.router is not None,
            "ready": sum(map(len, self._pools)),
            "in_use": 0 if self.router is None else self.router.addresses.in_use,
            "pool_hits": self._closed_hits + sum(pool.hits for pool in self._pools),
            "pool_misses": self._closed_misses + sum(pool.misses for pool in self._pools),
            "policies": len(self._policies),
            "resolved": 0 if self._resolver is None else self._resolver.answered,
            "packets_refused": 0 if self.router is None else self.router.count(REFUSED),
            "host_connections": 0 if self.router is None else self.router.count(PROXIED),
            "packets_limited": 0 if self.router is None else self.router.count(LIMITED),
            "rules_restored": 0 if self.router is None else self.router.uplink.rules.restored,
        }

    async def serve_functions(self, serve: ServeFunctions) -> None:
        """Have functions call others over the gateway: now, or when the router is made. Once."""
        async with self._opening:
            self._serve = serve
            if self.router is not None:
                await serve(await self.router.bound(egress.FUNCTIONS_PORT))

    def egress_of(self, address: str) -> Egress | None:
        """The rules of the function that an endpoint's address belongs to; None: it has none now."""
        policy = self._policy_of.get(address)
        return policy.egress if policy is not None else None

    async def aclose(self) -> None:
        """Take everything down; sandboxes that are left reach nothing any more."""
        for pool in list(self._pools):
            self.close_pool(pool)
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._resolver is not None:
            await self._resolver.aclose()
        if self._proxy is not None:
            await self._proxy.aclose()
        router, self.router = self.router, None
        if router is not None:
            await router.close()

    async def ready(self) -> Router:
        """The router, made if there is none yet. Raises: NetworkUnavailable: why, and what to do."""
        async with self._opening:
            if self.router is None:
                self.router = await self._open_router()
                await self._open_resolver(self.router)
                await self._open_proxy(self.router)
                if self._serve is not None:
                    await self._serve(await self.router.bound(egress.FUNCTIONS_PORT))
        return self.router

    def why_not(self) -> str:
        """Why there can be no private networks; empty as long as nothing is known that prevents them."""
        if not self._config.private:
            return "network.private is false"
        if not have_nft():
            return "nft is not installed: apt-get install nftables"
        if not capabilities.has(capabilities.CAP_NET_ADMIN):
            return "the worker has no CAP_NET_ADMIN"
        try:
            NetlinkSocket.open(NETFILTER).close()
        except OSError as error:
            return f"this kernel has no nf_tables (CONFIG_NF_TABLES): {error.strerror}"
        return ""

    async def _open_router(self) -> Router:
        if why := self.why_not():
            raise NetworkUnavailable(why)
        if network_namespaces.sysctl(FORWARD) != "1":
            if not self._config.ip_forward:
                raise NetworkUnavailable("the host forwards no packets: sysctl -w net.ipv4.ip_forward=1")
            network_namespaces.set_sysctl(FORWARD, 1)
            _log.warning("network.ip_forward: the host forwards packets from now on (net.ipv4.ip_forward was 0)")
        most = Limits(self._config.connections, self._config.new_connections, self._config.queries)
        try:
            return await Router.open(
                self._worker,
                addresses=self.configured.addresses,
                uplink=self.configured.uplink,
                never=[*egress.NEVER, *self.configured.denied],
                most=most,
                shares=self._shares([each.connections for each in classes(most)]),
            )
        except OSError as error:
            raise NetworkUnavailable(f"{error}; see `sockd doctor`") from error

    def _shares(self, sizes: Sequence[int]) -> ConnectionShares:
        """POLICY: half of the host's table of tracked connections is left to the host, and a function has half of the rest."""
        config = self._config
        entries = tracked_connections() // 2
        most = entries // ENTRIES if config.all_connections is None else config.all_connections
        return ConnectionShares(
            sizes, most, most // 2 if config.function_connections is None else config.function_connections
        )

    async def _open_resolver(self, router: Router) -> None:
        if self._resolving is not None:
            resolving, queries = self._resolving, await router.nameserver()
            configured = self.configured
            never = [*egress.NEVER, *egress.UNROUTED, *configured.denied, configured.addresses, configured.uplink]
            of = self._policy_of.get
            self._resolver = Resolver(resolving.jail, resolving.uid, queries, resolving.nameservers, of, never)

    async def _open_proxy(self, router: Router) -> None:
        if self._proxying is not None and self.configured.host_ports:
            listeners = {port: await router.bound(port) for port in self.configured.host_ports}
            for each in listeners.values():
                each.listen(BACKLOG)
            self._proxy = HostProxy(self._proxying.jail, self._proxying.uid, listeners)

    def _idle_share(self) -> int:
        """POLICY: as nothing tells which Zygote's functions the next burst is for, each has an equal part."""
        return min(self._config.pool, self._config.idle_pools // max(1, len(self._pools)))

    def _policy_gone(self, policy: Policy) -> None:
        self._policies.discard(policy)
        self._spawn_task(self._remove(policy))

    def _spawn_task(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _remove(self, policy: Policy) -> None:
        try:
            await policy.remove()
        except OSError as error:
            _log.error("a function's rules could not be removed: %s", error)


def tracked_connections() -> int:
    """Return how many connections the host's kernel tracks at most."""
    try:
        return int(network_namespaces.sysctl(TRACKED))
    except (OSError, ValueError):
        return USUAL_TRACKED
