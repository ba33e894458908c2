"""The kernel's floor and the peers, for real."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.starters import floor, peers

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
STEPS = [
    "root",
    "clone",
    "join cgroups",
    "uid map",
    "chroot",
    "setresuid",
    "drop capabilities",
    "seccomp",
    "close fds",
    "ready",
]


def test_the_floor_tells_the_time_of_every_step() -> None:
    with floor() as kernel:
        steps = kernel.ask("start")
        assert list(steps) == STEPS
        assert all(duration > 0 for duration in steps.values())
        assert kernel.rate(3, 10) > 1


def test_the_floor_removes_its_cgroups() -> None:

    before = set(Path("/sys/fs/cgroup").rglob("sockd-floor-*"))
    with floor() as kernel:
        kernel.start_ms()
        assert set(Path("/sys/fs/cgroup").rglob("sockd-floor-*")) > before
    assert set(Path("/sys/fs/cgroup").rglob("sockd-floor-*")) <= before


def test_a_driver_that_died_is_reported() -> None:
    with floor() as kernel, pytest.raises(RuntimeError, match="floor died"):
        kernel.ask("rate no numbers")


def test_the_bare_interpreter_is_always_a_peer() -> None:
    with peers() as found:
        assert found["python"].start_ms() > 0
