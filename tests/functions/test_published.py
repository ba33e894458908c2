"""Published versions below the APIs: which are live, what they share with their function, whose code stays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sockd.base.config import CodeConfig
from sockd.base.errors import BadRequest, NoSuchFunction, NoSuchVersion
from sockd.functions.provisioning import Provisioning
from sockd.functions.registry.aliases import Alias
from sockd.functions.registry.function_store import Conflict
from sockd.functions.registry.publications import VersionInUse
from sockd.functions.serving.group_shares import GroupShares
from sockd.functions.versions import Versions
from sockd.starts.packages.install_cache import InstallCache
from tests.functions.harness import HELLO, MB, Harness, opened, with_packages
from tests.support.servers.package_index import PackageIndex, wheel

pytestmark = pytest.mark.anyio


def code(number: int) -> dict[str, str]:
    return {"f.py": f"def f(event): return {number}"}


def versions_of(harness: Harness, **config: Any) -> Versions:
    registry, functions = harness.functions.registry, harness.functions
    return Versions(
        registry, functions, Provisioning(registry, functions.live, harness.budget, GroupShares()), CodeConfig(**config)
    )


async def test_versions_of_a_function_share_what_it_may_use(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as harness:
        await harness.deploy("f", HELLO, memory_mb=100, reserved_memory_mb=200, concurrency=3)
        await versions_of(harness).publish("f")
        await harness.deploy("f", code(2), memory_mb=100, reserved_memory_mb=200, concurrency=3)
        latest, first = await harness.functions.live.get("f"), await harness.functions.live.get("f", "1")
        assert (latest.version.number, first.version.number) == ("$LATEST", "1")
        assert first is not latest and first is await harness.functions.live.get("f", "1")
        assert first.allowance is latest.allowance and harness.budget.used == 200 * MB
        await harness.functions.changes.configure("f", {"concurrency": 7})
        assert first.admission.concurrency == 7
        assert first.version.record.digest in os.listdir(tmp_path / "code")
        await harness.functions.remove("f")
        assert harness.budget.used == 0 and os.listdir(tmp_path / "code") == []
        with pytest.raises(NoSuchFunction):
            await harness.functions.live.get("f", "1")


async def test_only_so_many_stay_live_that_no_one_uses(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as harness:
        published, versions = harness.functions.live.published, versions_of(harness)
        published._most = 2
        for number in range(1, 5):
            await harness.deploy("f", code(number))
            await versions.publish("f")
        busy = await harness.functions.live.get("f", "1")
        busy.running += 1
        for number in range(2, 5):
            await harness.functions.live.get("f", str(number))
        assert [each.version.number for each in published.live()] == ["1", "4"]
        busy.running -= 1
        await harness.functions.live.get("f", "2")
        assert [each.version.number for each in published.live()] == ["4", "2"]


async def test_publishing_what_has_not_changed_gives_the_number_that_it_has(
    tmp_path: Path, index: PackageIndex
) -> None:
    async with opened(tmp_path, index) as harness:
        versions = versions_of(harness, max_published=2)
        await harness.deploy("f", HELLO)
        assert [(await versions.publish("f")).publication.number for _ in range(2)] == [1, 1]  # type: ignore[union-attr]
        await harness.functions.changes.configure("f", {"concurrency": 2, "queue_depth": 5})
        assert versions.get("f", "1") == await versions.publish("f")
        await harness.functions.changes.configure("f", {"env": {"A": "b"}})
        assert (await versions.publish("f")).publication.number == 2  # type: ignore[union-attr]
        await harness.deploy("f", code(3))
        with pytest.raises(BadRequest, match=r"code\.max_published"):
            await versions.publish("f")
        await versions.delete("f", 1)
        assert (await versions.publish("f")).publication.number == 3  # type: ignore[union-attr]


async def test_packages_of_a_published_version_have_their_user(tmp_path: Path, index: PackageIndex) -> None:
    index.add(wheel("lib", "1.0", {"lib.py": ""}))
    async with opened(tmp_path, index) as harness:
        versions = versions_of(harness)
        (key,) = (await harness.deploy("f", with_packages("lib"))).keys
        await versions.publish("f")
        await harness.deploy("f", code(2))
        packages: InstallCache = harness.packages
        with pytest.raises(BadRequest, match="f"):
            await packages.remove(key, users=harness.functions.package_users.of)
        await versions.delete("f", 1)
        assert harness.functions.package_users.of(key) == []


async def test_going_back_brings_code_and_settings_and_leaves_what_all_share(
    tmp_path: Path, index: PackageIndex
) -> None:
    async with opened(tmp_path, index) as harness:
        versions = versions_of(harness)
        await harness.deploy("f", code(1), memory_mb=100)
        with pytest.raises(BadRequest, match="nothing to roll back to"):
            await versions.rollback("f")
        await versions.publish("f")
        await harness.deploy("f", code(2), memory_mb=200)
        await harness.functions.changes.configure("f", {"concurrency": 4})
        for memory_mb in (100, 200, 100):
            await versions.rollback("f")
            assert harness.functions.live.current("f").config.memory_mb == memory_mb
            assert harness.functions.live.current("f").config.concurrency == 4
        with pytest.raises(NoSuchVersion):
            await versions.rollback("f", 2)
        assert (await versions.rollback("f", 1)).digest == versions.get("f", "1").record.digest


async def test_an_alias_that_somebody_else_has_changed_is_not_overwritten(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as harness:
        versions = versions_of(harness)
        await harness.deploy("f", HELLO)
        await versions.publish("f")
        old = await versions.put_alias(Alias("f", "prod", "1"))
        new = await versions.put_alias(Alias("f", "prod", "$LATEST"), old=old)
        with pytest.raises(Conflict):
            await versions.put_alias(old, old=old)
        assert versions.alias("f", "prod") == new


async def test_what_an_alias_leads_to_stays(tmp_path: Path, index: PackageIndex) -> None:
    async with opened(tmp_path, index) as harness:
        versions = versions_of(harness)
        await harness.deploy("f", HELLO)
        await versions.publish("f")
        alias = await versions.put_alias(Alias("f", "prod", "1"))
        assert alias.revision and versions.alias("f", "prod") == alias
        with pytest.raises(VersionInUse, match="prod"):
            await versions.delete("f", 1)
        assert (await harness.functions.live.get("f", "prod")).version.number == "1"
        for wrong in (Alias("f", "7", "1"), Alias("f", "a b", "1"), Alias("f", "a", "1", "1", 0.5)):
            with pytest.raises(BadRequest):
                await versions.put_alias(wrong)
        for unknown in (Alias("f", "a", "2"), Alias("f", "a", "x"), Alias("none", "a", "1")):
            with pytest.raises(NoSuchFunction):
                await versions.put_alias(unknown)
        await versions.delete_alias("f", "prod")
        await versions.delete("f", 1)
        with pytest.raises(NoSuchVersion):
            await harness.functions.live.get("f", "prod")
