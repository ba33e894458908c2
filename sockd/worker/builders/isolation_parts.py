"""What the worker makes sandboxes of: the base, the farm, memory, private networks, and the parts of each sandbox.

Owns nothing: the stack that it is given closes everything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from sockd.base.config import MB, Config
from sockd.base.errors import BadConfig
from sockd.base.uids import PROXY_BELOW, RESOLVER_BELOW, ROOT_UIDS
from sockd.isolation.farm.farm import Farm, farm_path
from sockd.isolation.farm.namespace_maker import NamespaceMaker
from sockd.isolation.farm.uids import UidBlock
from sockd.isolation.farm.walled_networks import Wall
from sockd.isolation.networks import resolver
from sockd.isolation.networks.namespace_thread import have_nft
from sockd.isolation.networks.networks import Networks, Proxying, Resolving
from sockd.isolation.roots import base as bases
from sockd.isolation.roots.assembly import open_assembly
from sockd.isolation.roots.base import Base
from sockd.isolation.roots.jail import built, jail_on
from sockd.isolation.roots.premade import Premade
from sockd.isolation.roots.program import Limits, Network
from sockd.isolation.sandbox.foreign_farms import ForeignFarms
from sockd.isolation.sandbox.granted_ports import GrantedPorts
from sockd.isolation.sandbox.memory_budget import MemoryBudget, host_memory_bytes
from sockd.isolation.sandbox.parts import Parts
from sockd.isolation.sandbox.sandbox_pipes import SandboxPipes
from sockd.linux.cgroups.cgroup_pool import CgroupPool
from sockd.linux.network.resolv_conf import nameservers
from sockd.starts.zygotes.children import SPARE_MEMORY_BYTES
from sockd.worker.builders.linux_parts import LinuxParts
from sockd.worker.state_dir import StateDir

IDLE_NETWORKS = 0.25
"""Below this free share of the memory budget no networks are made that the last minute did not ask for."""
WALLED: tuple[Network, ...] = ("none", "private")
"""Networks whose functions are forked from walled Zygotes."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IsolationParts:
    """Made by `build`."""

    base: Base
    budget: MemoryBudget
    networks: Networks
    farm: Farm
    sandboxes: Parts
    walls: Mapping[Network, Wall]
    foreign: ForeignFarms
    spare: Limits
    """What a spare is held to."""

    @classmethod
    async def build(
        cls, config: Config, state: StateDir, linux: LinuxParts, stack: AsyncExitStack, on_end: Callable[[], None]
    ) -> IsolationParts:
        """Build them on `stack`. Args: on_end: called once if the farm ends by itself. Raises: SockdError, OSError."""
        base = Base.build(farm_path(state.path), bases.plan(state.packages))
        stack.callback(base.close)
        budget = MemoryBudget(budget_bytes(config))
        maker = NamespaceMaker()
        stack.push_async_callback(maker.aclose)
        networks = await open_networks(config, state, linux.cgroups, budget, stack)
        farm = await Farm.start(base, linux.cgroups.take(), on_end, linux.ways)
        stack.push_async_callback(farm.close)
        spare = spare_limits(config)
        assembly = open_assembly(linux.ways, base, spare)
        stack.callback(assembly.close)
        ends = Premade(SandboxPipes.open, SandboxPipes.close)
        stack.callback(ends.close)
        sandboxes = Parts(
            assembly,
            linux.cgroups,
            budget,
            farm.release,
            config.http.max_payload_bytes,
            config.sandbox.spawn_deadline_s,
            config.http.stop_grace_s,
            ends.take,
            init_ceiling=config.sandbox.init_ceiling,
            ways=linux.ways,
            ports=GrantedPorts(linux.groups.ports),
        )
        walls = {network: Wall(network, networks, maker) for network in WALLED}
        uids = UidBlock.of_host(config.sandbox.base_uid + ROOT_UIDS, ROOT_UIDS)
        foreign = ForeignFarms(sandboxes, uids, spare)
        stack.push_async_callback(foreign.aclose)
        return cls(base, budget, networks, farm, sandboxes, walls, foreign, spare)


async def open_networks(
    config: Config, state: StateDir, cgroups: CgroupPool, budget: MemoryBudget, stack: AsyncExitStack
) -> Networks:
    """Private networks, and what their resolver stands on where there can be one. Nothing is started."""
    asked = config.network.nameservers or tuple(nameservers())
    resolving = proxying = None
    if (asked or config.network.host_ports) and config.network.private and have_nft():
        root, places = state.path / "resolver", resolver.places()
        stack.callback(built(root, places).close)
        jail = jail_on(root, places, cgroups.take, cgroups.give_back)
        resolving = Resolving(jail, config.sandbox.base_uid - RESOLVER_BELOW, asked) if asked else None
        proxying = Proxying(jail, config.sandbox.base_uid - PROXY_BELOW)

    def is_short() -> bool:
        return budget.contended or budget.free < budget.total * IDLE_NETWORKS

    networks = await Networks.open(config.network, state.id, budget.reserve_nowait, resolving, proxying, is_short)
    stack.push_async_callback(networks.aclose)
    networks.configured.check_defaults(config.function.egress)
    if config.network.private and (why := networks.why_not()):
        _log.info('functions with network = "private" are refused: %s', why)
    return networks


def budget_bytes(config: Config) -> int:
    """The memory that sandboxes may use together. Raises: BadConfig: the cache node leaves them none."""
    if (configured := config.sandbox.memory_mb) is not None:
        return configured * MB
    host, node = host_memory_bytes() * 3 // 4, config.cache_node_bytes
    if host <= node:
        raise BadConfig(
            f"group.cache_node_memory_mb = {node // MB} leaves functions nothing of the {host // MB} MB that they "
            "and the cache node may take: lower it, or set sandbox.memory_mb"
        )
    return host - node


def spare_limits(config: Config) -> Limits:
    """What a spare is held to until it is a function; its /tmp has the default size, so that it mostly fits."""
    function = config.function
    return Limits(
        memory_bytes=SPARE_MEMORY_BYTES,
        pids=function.pids,
        cpus=function.cpus,
        tmp_bytes=function.tmp_mb * MB,
        tmp_inodes=function.tmp_inodes,
        network=function.network,
        sockets=function.sockets,
    )
