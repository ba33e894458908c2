"""A daemon keeps the machine's processors awake while it starts a sandbox, and at no other time; nobody else holds what does it.

Alone, as the kernel tells only what all processes of the machine ask for together."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sockd.kernel.cpu_latency import ANY_US, DEVICE, CpuLatency
from tests.daemon.running import RunningDaemon

pytestmark = [
    pytest.mark.root,
    pytest.mark.alone,
    pytest.mark.skipif(not Path(DEVICE).exists(), reason="a kernel without CONFIG_CPU_IDLE's PM QoS"),
]
NOOP = "def f(event): return 1"
SLOW = "import threading\nthreading.Event().wait(0.01)\n" + NOOP
"""As long as the worker keeps processors awake at most: whoever looks again and again may miss a start of 1 ms."""


@pytest.fixture(scope="module")
def config() -> str:
    return '[sandbox]\nidle_poll = "on"\npause_after_s = 10.0\n'  # nothing is thawed that should be warm


@pytest.fixture
def latency() -> Iterator[CpuLatency]:
    latency = CpuLatency.open()
    yield latency
    latency.close()


class Watch:
    """Whether sleep was forbidden while the block ran."""

    def __init__(self, latency: CpuLatency) -> None:
        self._latency = latency
        self._ends = False
        self.was_forbidden = False
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._ends:
            self.was_forbidden |= self._latency.allowed_us() == 0

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._thread.join()


def holders(daemon: RunningDaemon) -> list[int]:
    """Who of the daemon and all processes that it has made holds the device."""
    found = []
    for pid in (daemon.pid, *daemon.pids()):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                found += [pid] if os.readlink(fd) == DEVICE else []
            except FileNotFoundError:  # closed, or the process has ended
                continue
    return found


def test_processors_are_awake_during_a_start_and_sleep_behind_it(daemon: RunningDaemon, latency: CpuLatency) -> None:
    daemon.deploy("slow", SLOW)
    assert latency.allowed_us() == ANY_US
    for _ in range(3):
        with Watch(latency) as watch:
            assert daemon.run("slow", x_sockd_fresh="1").status == 200
        assert watch.was_forbidden
        while latency.allowed_us() == 0:  # its answer is sent first
            pass


def test_for_a_warm_request_nobody_is_woken(daemon: RunningDaemon, latency: CpuLatency) -> None:
    daemon.deploy("warm", NOOP)
    daemon.run("warm")
    while latency.allowed_us() == 0:
        pass
    with Watch(latency) as watch:
        assert daemon.run("warm").headers["x-sockd-cold"] == "0"
    assert not watch.was_forbidden


def test_only_the_daemon_holds_the_device(daemon: RunningDaemon) -> None:
    daemon.deploy("held", NOOP)
    daemon.run("held")
    assert len(daemon.pids()) > 2
    assert holders(daemon) == [daemon.pid]


def test_switched_off_it_holds_nothing(tmp_path: Path) -> None:
    daemon = RunningDaemon.start(tmp_path / "state", '[sandbox]\nidle_poll = "off"\n')
    try:
        assert holders(daemon) == []
    finally:
        daemon.close()
