"""What workers of a group share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sockd.images.chunks.directory_store import DirectoryStore
from tests.functions.blobs.house import House


@pytest.fixture
async def house(tmp_path: Path, postgres_dsn: str) -> AsyncIterator[House]:
    chunks = DirectoryStore.create(tmp_path / "chunks")
    house = House(tmp_path, postgres_dsn, chunks)
    await house.open()
    yield house
    await house.functions.aclose()
    chunks.close()
