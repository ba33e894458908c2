"""Packages that nobody uses go; the disk is free afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sockd.base.errors import BadRequest, NoSuchPackage
from sockd.starts.packages.distribution import Closure
from sockd.starts.packages.install_cache import InstallCache
from tests.starts.packages.install.store import NOISE, nothing_half_done, stored
from tests.support.servers.package_index import PackageIndex, wheel

pytestmark = pytest.mark.anyio


def unused(key: str) -> tuple[str, ...]:
    return ()


@pytest.fixture
async def closure(cache: InstallCache, index: PackageIndex) -> Closure:
    index.add(wheel("lib", "1.0", {"lib.py": "", "noise": NOISE}))
    closure = await cache.resolve("lib")
    await cache.ensure(closure)
    return closure


async def test_a_removed_package_is_gone_from_store_and_uvs_cache(
    cache: InstallCache, closure: Closure, state: Path
) -> None:
    (key,) = closure.keys
    await cache.remove(key, users=unused)
    assert stored(state) == set() and cache.snapshot() == [] and nothing_half_done(state)
    assert not list((state / "uv-cache").rglob("noise"))


async def test_a_package_in_use_stays_and_its_users_are_named(
    cache: InstallCache, closure: Closure, state: Path
) -> None:
    (key,) = closure.keys
    with pytest.raises(BadRequest, match="used by alpha, beta"):
        await cache.remove(key, users=lambda key: ("beta", "alpha"))
    assert stored(state) == closure.keys
    assert cache.snapshot(lambda key: ("alpha",))[0].used_by == ("alpha",)


async def test_what_is_not_installed_cannot_be_removed(cache: InstallCache) -> None:
    with pytest.raises(NoSuchPackage, match=r"no package \.\./\.\./etc"):
        await cache.remove("../../etc", users=unused)


async def test_an_install_during_the_removal_wins(cache: InstallCache, closure: Closure, state: Path) -> None:
    (key,) = closure.keys
    await asyncio.gather(cache.remove(key, users=unused), cache.ensure(closure))
    assert stored(state) == closure.keys == {each.key for each in cache.snapshot()}


async def test_a_removal_does_not_break_an_install_that_is_running(
    cache: InstallCache, closure: Closure, index: PackageIndex, state: Path
) -> None:
    index.add(wheel("lib", "2.0", {"lib.py": "", "noise": NOISE}))
    index.add(wheel("other", "1.0", {"other.py": "", "noise": NOISE}))
    more = await cache.resolve("lib==2.0\nother")
    (key,) = closure.keys
    await asyncio.gather(cache.ensure(more), cache.remove(key, users=unused))
    assert stored(state) == more.keys
