"""Wheels of a group: built once, and built again where the group cannot be asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from sockd.base.errors import StoreUnavailable
from sockd.functions.blobs.blobs import Blobs
from sockd.functions.blobs.shared_wheels import SharedWheels
from sockd.images.chunks.store import ChunkStore
from sockd.starts.packages.distribution import Distribution
from tests.functions.blobs.harness import Harness

pytestmark = pytest.mark.anyio
BUILT = Distribution(name="pkg", version="1.0", digest="d" * 64, url="https://example.invalid/pkg.tar.gz")


async def test_a_wheel_keeps_its_name_and_its_bytes(harness: Harness, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    wheel = tmp_path / "one" / "pkg-1.0-py3-none-any.whl"
    wheel.write_bytes(b"a\nwheel\n" * 1000)
    wheels = SharedWheels(harness.blobs)
    assert await wheels.fetch(BUILT, tmp_path / "other") is None
    await wheels.keep(BUILT, wheel)
    fetched = await wheels.fetch(BUILT, tmp_path / "other")
    assert fetched == tmp_path / "other" / wheel.name and fetched.read_bytes() == wheel.read_bytes()
    assert list((tmp_path / "other").iterdir()) == [fetched]


async def test_a_group_that_cannot_be_asked_costs_a_build(harness: Harness, tmp_path: Path) -> None:
    async def away() -> tuple[ChunkStore, bytes]:
        raise StoreUnavailable("s3://away", "it does not answer")

    wheel = tmp_path / "pkg-1.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    wheels = SharedWheels(Blobs(harness.table, away))
    await wheels.keep(BUILT, wheel)
    await SharedWheels(harness.blobs).keep(BUILT, wheel)
    (tmp_path / "other").mkdir()
    assert await wheels.fetch(BUILT, tmp_path / "other") is None
