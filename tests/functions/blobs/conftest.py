"""What workers of a group share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sockd.images.chunks.directory_store import DirectoryStore
from tests.functions.blobs.harness import Harness


@pytest.fixture
async def harness(tmp_path: Path, postgres_dsn: str) -> AsyncIterator[Harness]:
    chunks = DirectoryStore.create(tmp_path / "chunks")
    harness = Harness(tmp_path, postgres_dsn, chunks)
    await harness.open()
    yield harness
    await harness.functions.aclose()
    chunks.close()
