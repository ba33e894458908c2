"""A regular file is opened; anything else in its place is refused, and waited for by nobody."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sockd.base.errors import BadConfig
from sockd.base.key_file import read_key
from sockd.linux.regular_file import NO_FILE, contents, opened


def test_a_file_is_read_and_made(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"x" * 100_000)
    assert contents(tmp_path / "there") == b"x" * 100_000
    os.close(opened(tmp_path / "new", os.O_RDWR | os.O_CREAT))
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir], ids=["fifo", "directory"])
def test_something_else_is_refused_at_once(tmp_path: Path, put: Callable[[Path], None]) -> None:
    put(tmp_path / "it")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match=NO_FILE):
        contents(tmp_path / "it")
    assert os.listdir("/proc/self/fd") == before


def test_a_key_that_is_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key", 0o600)
    with pytest.raises(BadConfig, match="must be a file"):
        read_key(tmp_path / "key")
