"""Packing a directory: what is too large is refused before it is read, with the setting and the largest files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sockd.base.config import CodeConfig
from sockd.base.errors import BadArchive
from sockd.functions.code.packing import pack

GB, MB = 1 << 30, 1 << 20


def read_so_far() -> int:
    """Bytes that this process has read."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_large_file_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("def f(event): pass")
    with open(tmp_path / "model.bin", "wb") as file:
        file.truncate(4 * GB)
    before = read_so_far()
    with pytest.raises(BadArchive, match=r"holds 4\.0 GB; the limit is 250 MB .* model\.bin 4\.0 GB"):
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


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (
            CodeConfig(max_zip_bytes=3 * MB),
            r"packs to 4\.0 MB; the limit is 3\.0 MB \(code\.max_zip_bytes in the worker's",
        ),
        (
            CodeConfig(max_code_bytes=3 * MB),
            r"holds 4\.0 MB; the limit is 3\.0 MB \(code\.max_code_bytes in the worker's",
        ),
    ],
)
def test_a_directory_that_is_too_large_names_the_setting_and_its_largest_files(
    tmp_path: Path, limits: CodeConfig, words: str
) -> None:
    (tmp_path / "f.py").write_text("def f(event): pass")
    for name, size_bytes in (("small.bin", MB), ("large.bin", 3 * MB)):
        (tmp_path / name).write_bytes(random.Random(1).randbytes(size_bytes))
    with pytest.raises(
        BadArchive, match=rf"{words} .*: large\.bin 3\.0 MB, small\.bin 1\.0 MB, f\.py .* \.sockdignore"
    ):
        pack(tmp_path, limits)


def test_too_many_files_name_the_setting_and_where_most_are(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(20):
        (tmp_path / "data" / str(number)).write_bytes(b"")
    with pytest.raises(BadArchive, match=r"more than 9 files .*code\.max_files in .* most are in data/"):
        pack(tmp_path, CodeConfig(max_files=9))
