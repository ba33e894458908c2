"""An install cache on a state directory of its own, which installs from the test's index."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from sockd.base.config import PackageConfig
from sockd.starts.packages.install_cache import InstallCache
from tests.starts.packages.install.store import Opened
from tests.support.servers.package_index import PackageIndex


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "tmp").mkdir()
    return tmp_path


@pytest.fixture
def opened(state: Path, index: PackageIndex) -> Opened:
    """Opens the install cache of `state`, as a starting daemon does."""

    @asynccontextmanager
    async def open_cache(**settings: object) -> AsyncIterator[InstallCache]:
        config = msgspec.convert({"index_url": index.url, **settings}, PackageConfig)
        cache = InstallCache(config, state / "packages", state / "tmp")
        await cache.recover()
        try:
            yield cache
        finally:
            await cache.aclose()

    return open_cache


@pytest.fixture
async def cache(opened: Opened) -> AsyncIterator[InstallCache]:
    async with opened() as cache:
        yield cache
