"""Packing a directory: what is too large is refused before it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from sockd.code.packing import pack
from sockd.plain.errors import BadArchive

GB = 1 << 30


def read_so_far() -> int:
    """Bytes that this process has read."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_large_file_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("def f(event): pass")
    with open(tmp_path / "model.bin", "wb") as file:
        file.truncate(4 * GB)
    before = read_so_far()
    with pytest.raises(BadArchive, match=rf"holds {4 * GB + 18} bytes, .* largest file is 'model.bin' with {4 * GB}"):
        pack(tmp_path)
    assert read_so_far() - before < 1 << 20


def test_many_files_that_are_too_large_together_are_refused_unread(tmp_path: Path) -> None:
    for number in range(3):
        with open(tmp_path / f"part{number}", "wb") as file:
            file.truncate(100 << 20)
    before = read_so_far()
    with pytest.raises(BadArchive, match="the limit is"):
        pack(tmp_path)
    assert read_so_far() - before < 1 << 20
