"""What a confined process of the engine's stands on: the tree, the cgroups and the interpreter, without a daemon."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

from sockd.images import base as bases
from sockd.kernel.cgroups.tree import CgroupTree, Hierarchies
from sockd.sandbox.cgroup_pool import CgroupPool
from sockd_initscripts.client import process
from sockd_initscripts.client.process import Ground


@contextlib.asynccontextmanager
async def ground_at(
    path: Path, places: tuple[tuple[str, str], ...] | None = None, cgroup: str = ""
) -> AsyncIterator[Ground]:
    """A ground with its tree at `path`, taken away at the end.

    Args: places: as of `process.software`, which is the default; cgroup: the name of its cgroup tree."""
    async with contextlib.AsyncExitStack() as stack:
        tree = CgroupTree.create(Hierarchies.detect(), cgroup or f"sockd-test-{uuid.uuid4().hex[:8]}")
        stack.callback(tree.destroy_all, 5)
        pool = CgroupPool(tree, 0)
        await pool.start()
        stack.push_async_callback(pool.aclose)
        places = process.software() if places is None else places
        binds = [bases.Bind(source, target) for source, target in places]
        stack.callback(bases.Base.build(path, (*bases.software(), *binds)).close)
        yield Ground(path, bases.interpreter(), process.import_paths(places), pool.take, pool.give_back)
