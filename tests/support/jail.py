"""What a confined process of the engine's stands on: the tree, the cgroups and the interpreter, without a daemon."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

from sockd.isolation.roots.jail import built, jail_on
from sockd.linux.cgroups.cgroup_pool import CgroupPool
from sockd.linux.cgroups.tree import CgroupTree, Hierarchies
from sockd.linux.confined.confined_process import Jail
from sockd.linux.confined.software import Places
from sockd_initscripts.client import engine_software


@contextlib.asynccontextmanager
async def jail_at(path: Path, places: Places | None = None, cgroup: str = "") -> AsyncIterator[Jail]:
    """A jail with its tree at `path`, taken away at the end.

    Args: places: of software; the default is the engine's; cgroup: the name of its cgroup tree."""
    async with contextlib.AsyncExitStack() as stack:
        tree = CgroupTree.create(Hierarchies.detect(), cgroup or f"sockd-test-{uuid.uuid4().hex[:8]}")
        stack.callback(tree.destroy_all, 5)
        pool = CgroupPool(tree, 0)
        await pool.start()
        stack.push_async_callback(pool.aclose)
        places = engine_software.places() if places is None else places
        stack.callback(built(path, places).close)
        yield jail_on(path, places, pool.take, pool.give_back)
