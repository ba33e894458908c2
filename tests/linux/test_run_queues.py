"""The machine's run queues, as /proc tells them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sockd.linux.processes.run_queues import RunQueues


def test_one_that_asks_is_runnable() -> None:
    before = os.listdir("/proc/self/fd")
    run_queues = RunQueues.open()
    assert run_queues.runnable() >= 1
    run_queues.close()
    run_queues.close()
    assert os.listdir("/proc/self/fd") == before


def test_it_reads_what_the_kernel_writes(tmp_path: Path) -> None:
    (tmp_path / "loadavg").write_text("0.20 0.18 0.12 17/80 11206\n")
    run_queues = RunQueues.open(str(tmp_path / "loadavg"))
    assert run_queues.runnable() == 17
    run_queues.close()


def test_without_proc_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RunQueues.open(str(tmp_path / "loadavg"))
