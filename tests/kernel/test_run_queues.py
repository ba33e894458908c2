"""The machine's run queues, as /proc tells them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sockd.kernel.run_queues import RunQueues


def test_whoever_looks_is_runnable_and_switches_are_counted() -> None:
    run_queues = RunQueues.open()
    first = run_queues.look()
    told = threading.Event()
    thread = threading.Thread(target=told.set)
    thread.start()
    told.wait()
    thread.join()
    second = run_queues.look()
    run_queues.close()
    run_queues.close()
    assert first.runnable >= 1
    assert second.switches > first.switches > 0


def test_it_reads_what_the_kernel_writes(tmp_path: Path) -> None:
    (tmp_path / "loadavg").write_text("0.20 0.18 0.12 17/80 11206\n")
    (tmp_path / "stat").write_text("cpu  1 2 3\nintr 99 1 2\nctxt 1990473\nbtime 1\n")
    run_queues = RunQueues.open(str(tmp_path / "loadavg"), str(tmp_path / "stat"))
    assert run_queues.look() == (17, 1990473)
    run_queues.close()


def test_without_proc_nothing_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "loadavg").touch()
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        RunQueues.open(str(tmp_path / "loadavg"), str(tmp_path / "stat"))
    assert os.listdir("/proc/self/fd") == before
