"""A crash at any moment: the metadata file decides."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sockd.starts.packages.distribution import Closure
from sockd.starts.packages.install_cache import InstallCache
from tests.starts.packages.install.store import nothing_half_done, stored
from tests.support.servers.package_index import PackageIndex, wheel

pytestmark = pytest.mark.anyio


@pytest.fixture
async def closure(cache: InstallCache, index: PackageIndex) -> Closure:
    """An installed closure of two."""
    index.add(wheel("app", "1.0", {"app.py": ""}, requires=("lib",)))
    index.add(wheel("lib", "1.0", {"lib.py": ""}))
    closure = await cache.resolve("app")
    await cache.ensure(closure)
    return closure


async def test_a_clean_store_stays_as_it_is(cache: InstallCache, closure: Closure, state: Path) -> None:
    assert await cache.recover() == []
    assert stored(state) == closure.keys


@pytest.mark.parametrize(
    "damage",
    [
        lambda meta, directory: meta.unlink(),
        lambda meta, directory: meta.write_bytes(meta.read_bytes()[:20]),
        lambda meta, directory: meta.write_bytes(b""),
        lambda meta, directory: directory.rename(directory.parent / "elsewhere"),
        lambda meta, directory: meta.write_text(json.dumps(json.loads(meta.read_text()) | {"python": "cpython-39"})),
        lambda meta, directory: meta.write_text(json.dumps(json.loads(meta.read_text()) | {"key": "other"})),
    ],
    ids=["unpublished", "torn record", "empty record", "no directory", "another Python", "another key"],
)
async def test_half_a_package_is_none_and_is_installed_again(
    cache: InstallCache, closure: Closure, state: Path, damage: Callable[[Path, Path], None]
) -> None:
    app, lib = closure.distributions
    damage(state / "packages" / ".meta" / f"{app.key}.json", state / "packages" / app.key)
    (state / "tmp" / "packages" / "install-abc").mkdir()
    (state / "tmp" / "packages" / "record.json").touch()
    (state / "uv-cache" / ".tmpabc").mkdir()
    await cache.recover()
    assert stored(state) == {lib.key} and nothing_half_done(state)
    assert os.listdir(state / "packages" / ".meta") == [f"{lib.key}.json"]
    await cache.ensure(closure)
    assert stored(state) == closure.keys


async def test_a_directory_without_record_is_replaced_by_an_install(
    cache: InstallCache, closure: Closure, index: PackageIndex, state: Path
) -> None:
    index.add(wheel("late", "1.0", {"late.py": ""}))
    late = await cache.resolve("late")
    (key,) = late.keys
    (state / "packages" / key / "half").mkdir(parents=True)
    await cache.ensure(late)
    assert not (state / "packages" / key / "half").exists()
    await cache.recover()
    assert nothing_half_done(state)
