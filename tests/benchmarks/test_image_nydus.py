"""Nydus as a peer of `images`: it is optional, a mount that fails says why, and it prefetches what a start has read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.image_parts import nydus
from benchmarks.image_parts.nydus import NydusFailed


def installed(directory: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Programs of Nydus that are scripts."""
    for name, text in scripts.items():
        program = directory / name.replace("_", "-")
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    monkeypatch.setenv(nydus.DIRECTORY, str(directory))


def test_a_program_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, nydusd="true")
    assert nydus.missing() == ["nydus-image"]
    installed(tmp_path, monkeypatch, nydus_image="true")
    assert nydus.missing() == []


def test_a_daemon_that_does_not_mount_is_an_error_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, nydusd="echo no such blob; exit 1")
    with pytest.raises(NydusFailed, match="no such blob"), nydus.mounted(tmp_path / "bootstrap", {"type": "localfs"}):
        pytest.fail("it is mounted")
    assert [path.name for path in tmp_path.iterdir()] == ["nydusd"]


def test_files_are_prefetched_in_the_order_of_their_first_read() -> None:
    pattern = [record(3, 2, 0), record(1, 1, 7), record(2, 1, 6), record(9, 1, 1)]
    names = {1: "/b", 2: "/a", 3: "/c"}
    assert nydus.names_read(pattern, names) == ["/a", "/b", "/c"]


def record(ino: int, seconds: int, nanoseconds: int) -> dict[str, Any]:
    return {"ino": ino, "nr_read": 1, "first_access_time_secs": seconds, "first_access_time_nanos": nanoseconds}


def test_no_file_read_is_an_error_rather_than_an_image_without_prefetch() -> None:
    with pytest.raises(NydusFailed):
        nydus.names_read([record(1, 0, 0)], {})


def test_only_the_files_of_a_start_are_prefetched(tmp_path: Path) -> None:
    found = nydus.settings({"type": "localfs"}, tmp_path, prefetch=True, record=False)
    assert found["fs_prefetch"] == {"enable": True, "prefetch_all": False}
    assert found["device"]["cache"]["config"] == {"work_dir": str(tmp_path)}
