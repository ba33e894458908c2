"""Workers of a test, which share a chunk store, and imports with the cgroups that their processes are in."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from sockd.images.agent_keeper import agent_link
from sockd.images.store import first_starts
from sockd.linux.cgroups.cgroup_pool import CgroupPool
from sockd.linux.cgroups.tree import CgroupTree, Hierarchies
from tests.images.store.profiled_workers import (
    IMAGE,
    READS,
    Worker,
    Workers,
)
from tests.images.store.running_imports import Imports
from tests.support.jail import jail_at


@pytest.fixture
async def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Workers]:
    """Their starts are recorded by `record` alone, however long a test takes."""
    monkeypatch.setattr(first_starts, "QUIET_S", 600.0)
    async with jail_at(tmp_path / "jail", agent_link.places()) as jail, AsyncExitStack() as stack:
        yield Workers(tmp_path, jail, stack)


@pytest.fixture
async def profiled(workers: Workers) -> Worker:
    """A worker after the first start of the image."""
    first = workers.new()
    first.publish(IMAGE)
    counters = await first.start()
    assert counters["origin_chunks"] >= len(READS) - 1
    await first.record()
    return first


@pytest.fixture
async def pool() -> AsyncIterator[CgroupPool]:
    async with AsyncExitStack() as stack:
        tree = CgroupTree.create(Hierarchies.detect(), f"sockd-test-{uuid.uuid4().hex[:8]}")
        stack.callback(tree.destroy_all, 5)
        pool = CgroupPool(tree, 0)
        await pool.start()
        stack.push_async_callback(pool.aclose)
        yield pool


@pytest.fixture
def imports(tmp_path: Path, pool: CgroupPool) -> Imports:
    return Imports(tmp_path, pool)
