"""What is live follows what is recorded, whoever has recorded it: two registries on one file, as two workers have them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sockd.base.errors import CodeLost
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.function_store import Conflict
from sockd.functions.registry.registry import Registry
from tests.functions.harness import HELLO, Harness, opened
from tests.support.servers.package_index import PackageIndex

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def others(harness: Harness) -> AsyncIterator[Registry]:
    """The registry of another worker on the same store."""
    registry = await Registry.open(harness.state / "registry.sqlite")
    try:
        yield registry
    finally:
        await registry.aclose()


async def put(registry: Registry, record: FunctionRecord) -> FunctionRecord:
    return await registry.put(
        record.name,
        digest=record.digest,
        code_bytes=record.code_bytes,
        handler=record.handler,
        config=record.config,
        closure=record.closure,
    )


async def test_what_another_worker_has_changed_is_live_when_it_is_read(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as harness:
        await harness.deploy("f", HELLO, memory_mb=64)
        await harness.registry.publish("f", 1, "")
        live = harness.functions.live
        published = await live.get("f", "1")
        async with others(harness) as other:
            changed = other.get("f").settings.changed({"memory_mb": 96, "run": "off"})
            await put(other, replace(other.get("f"), config=changed.to_json()))
            with pytest.raises(Conflict):
                await harness.functions.changes.configure("f", {"memory_mb": 128})
            assert live.current("f").config.memory_mb == 96 and live.request_settings.run_rules == {"f": "off"}
            await other.unpublish("f", 1)
            with pytest.raises(Conflict):
                await harness.registry.publish("f", 2, "")
            assert live.published.live() == []
            await published.drain()
            await other.delete("f")
        with pytest.raises(Conflict):
            await harness.registry.publish("f", 2, "")
        await harness.functions.ended("f")
        assert live.names() == [] and live.allowances.get("f") is None and live.request_settings.run_rules == {}


async def test_a_deploy_of_another_worker_whose_code_is_not_here_is_reported(
    tmp_path: Path, index: PackageIndex
) -> None:
    async with opened(tmp_path, index) as harness:
        await harness.deploy("f", HELLO)
        async with others(harness) as other:
            await put(other, replace(other.get("f"), digest="0" * 64))
        with pytest.raises(Conflict):
            await harness.registry.publish("f", 1, "")
        live = harness.functions.live
        assert isinstance(live.restoring.unready["f"].error, CodeLost)
        assert (await live.get("f")).version.record.version == 1
        await harness.deploy("f", {"f.py": "def f(event): return 2"})
        assert live.current("f").record.version == 3 and live.restoring.unready == {}
