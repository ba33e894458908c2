"""The state directory: one daemon at a time, nothing half done in it, and an id that cgroups are named by."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sockd.base.errors import BadConfig
from sockd.worker.state_dir import StateDir


def test_opening_makes_the_directory_and_its_rooms(tmp_path: Path) -> None:
    state = StateDir.open(tmp_path / "deep" / "state")
    try:
        assert {path.name for path in state.path.iterdir()} >= {"lock", "tmp", "code", "store"}
        assert (state.path / "tmp").stat().st_mode & 0o777 == 0o700
        assert (state.path / "lock").read_text() == f"{os.getpid()}\n"
        assert state.socket == state.path / "sockd.sock"
    finally:
        state.close()


def test_what_was_half_done_is_gone_and_what_was_done_is_kept(tmp_path: Path) -> None:
    StateDir.open(tmp_path).close()
    (tmp_path / "tmp" / "half" / "deep").mkdir(parents=True)
    (tmp_path / "tmp" / "half" / "deep" / "file").write_text("x")
    (tmp_path / "code" / "digest").mkdir()
    (tmp_path / "learned.json").write_text("{}")
    state = StateDir.open(tmp_path)
    try:
        assert os.listdir(tmp_path / "tmp") == []
        assert (tmp_path / "code" / "digest").is_dir() and (tmp_path / "learned.json").exists()
    finally:
        state.close()


def test_a_second_one_is_refused_with_the_first_one_s_pid(tmp_path: Path) -> None:
    first = StateDir.open(tmp_path)
    try:
        with pytest.raises(BadConfig, match=rf"pid {os.getpid()}; stop it, or use --state-dir"):
            StateDir.open(tmp_path)
        (tmp_path / "kept").touch()
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    finally:
        first.close()
    StateDir.open(tmp_path).close()


def test_a_refused_one_touches_nothing(tmp_path: Path) -> None:
    first = StateDir.open(tmp_path)
    try:
        (tmp_path / "tmp" / "upload").write_text("under way")
        with pytest.raises(BadConfig):
            StateDir.open(tmp_path)
        assert (tmp_path / "tmp" / "upload").read_text() == "under way"
    finally:
        first.close()


def test_the_lock_goes_with_its_process_however_that_ends(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom sockd.worker.state_dir import StateDir\n"
        "state = StateDir.open(Path(sys.argv[1]))\nprint('open', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        with pytest.raises(BadConfig, match=f"pid {process.pid};"):
            StateDir.open(tmp_path)
        process.kill()
    StateDir.open(tmp_path).close()


def test_the_id_is_the_place_s_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    ids = []
    for name in ("real", "link", "real/../link"):
        state = StateDir.open(tmp_path / name)
        ids.append(state.id)
        state.close()
    other = StateDir.open(tmp_path / "other")
    other.close()
    assert len(set(ids)) == 1 and re.fullmatch("[0-9a-f]{8}", ids[0])
    assert other.id != ids[0]


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    state = StateDir.open(tmp_path)
    state.close()
    state.close()
