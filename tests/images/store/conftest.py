"""Workers of a test, which share a chunk store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from sockd.images.agent_keeper import agent_link
from sockd.images.store import first_starts
from tests.images.store.profiled_workers import (
    IMAGE,
    READS,
    Worker,
    Workers,
)
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
