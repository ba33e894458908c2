"""The kernel's floor and the peers, for real."""

from __future__ import annotations

import os

import pytest

from benchmarks.peers.starters import floor, peers
from tests.support.ledger import Ledger

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


def test_the_floor_removes_its_cgroups(ledger: Ledger) -> None:
    with floor() as kernel:
        kernel.start_ms()
        assert any(entry.kind == "cgroup" and "sockd-floor-" in entry.key for entry in ledger.survivors())
    ledger.check()


def test_a_driver_that_died_is_reported() -> None:
    with floor() as kernel, pytest.raises(RuntimeError, match="floor died"):
        kernel.ask("rate no numbers")


def test_the_bare_interpreter_is_always_a_peer() -> None:
    with peers() as found:
        assert found["python"].start_ms() > 0
