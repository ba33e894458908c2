"""Where an agent has its chunks from."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from sockd.images.agent.sources import slab_of
from sockd.images.chunks.chunk import CHUNK_BYTES


@pytest.mark.parametrize(
    ("size_bytes", "words"), [(0, ""), (64 << 20, ""), (3 * CHUNK_BYTES, "8 MB of disk for the cache of chunks")]
)
def test_a_cache_that_is_not_wanted_is_not_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, size_bytes: int, words: str
) -> None:
    caplog.set_level(logging.WARNING)
    fd = os.open(tmp_path / "l1", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        slab = slab_of(fd, size_bytes)
    finally:
        os.close(fd)
    assert (slab is not None) == (size_bytes == 64 << 20)
    if slab is not None:
        slab.close()
    assert words in caplog.text if words else not caplog.text
