"""The worker's part of Linux: its cgroups, what this kernel offers, and optional settings of the host.

Owns nothing: the stack that it is given closes everything.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass

from sockd.base.config import Config
from sockd.isolation.sandbox.socket_guards import guard_sockets
from sockd.isolation.sandbox.task_limits import limit_tasks
from sockd.linux.cgroups.cgroup_pool import CgroupPool
from sockd.linux.cgroups.tree import CgroupTree, Hierarchies
from sockd.linux.latency import favordynmods
from sockd.linux.latency.latency import Latency
from sockd.linux.ways import Ways
from sockd.worker.state_dir import StateDir

KILL_DEADLINE_S = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinuxParts:
    """Made by `build`."""

    hierarchies: Hierarchies
    latency: Latency
    groups: CgroupTree
    cgroups: CgroupPool
    ways: Ways

    @classmethod
    async def build(cls, config: Config, state: StateDir, stack: AsyncExitStack) -> LinuxParts:
        """Build them on `stack`. Raises: SockdError, OSError."""
        hierarchies = Hierarchies.detect()
        latency = Latency.open(config.latency, hierarchies)
        stack.callback(latency.close)
        groups, cgroups = await open_cgroups(config, state, hierarchies, stack)
        ways = Ways.find(config.sandbox.kernel_release, config.sandbox.roots)
        for found in (ways.roots, ways.proc, ways.exits):
            if found.reason:
                _log.info("as this kernel is older: %s", found.words)
        return cls(hierarchies, latency, groups, cgroups, ways)


async def open_cgroups(
    config: Config, state: StateDir, hierarchies: Hierarchies, stack: AsyncExitStack
) -> tuple[CgroupTree, CgroupPool]:
    """Our part of the cgroup tree, emptied of what a dead daemon left in it, and the pool."""
    leftovers = CgroupTree(hierarchies, f"sockd-{state.id}")
    leftovers.destroy_all(KILL_DEADLINE_S)
    tree = CgroupTree.create(hierarchies, f"sockd-{state.id}")
    stack.callback(tree.destroy_all, KILL_DEADLINE_S)
    stack.callback(tree.close)
    guard_sockets(tree, config.sandbox, config.network)
    limit_tasks(tree, config.sandbox)
    cgroups = CgroupPool(tree, config.sandbox.cgroup_pool, quick_moves=favordynmods.is_shown())
    await cgroups.start()
    stack.push_async_callback(cgroups.aclose)
    return tree, cgroups
