"""Load that takes only the processor time that nobody else wants."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.harness.spare_time import MOUNTS, spare_time


def test_a_process_is_idle_and_nothing_is_left_of_its_cgroup() -> None:
    with spare_time() as spare, subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True) as process:
        spare.take_in(process.pid)
        assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
    assert not [left for mount in MOUNTS for left in mount.glob(f"sockd-bench-{os.getpid()}")]


def test_where_there_is_no_such_file_none_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("benchmarks.harness.spare_time.MOUNTS", (tmp_path,))
    with spare_time() as spare:
        assert spare.words == "sessions of the least weight"
    assert not list(tmp_path.iterdir())
