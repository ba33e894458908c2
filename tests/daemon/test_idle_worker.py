"""A worker that has little to do sleeps: counted are the wake-ups of all threads of the daemon and the time they run."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.daemon.running import RunningDaemon
from tests.support.kernel_threads import slept_by
from tests.support.measured import at_least_once

pytestmark = pytest.mark.root
SECONDS = 5
MOST_WAKE_UPS = 10
"""Of all threads together, in a second."""
MOST_CPU_MS = 3.0
"""In a second."""
TRIES = 12
"""What shares a core and its caches makes the same code take up to twice the time."""


@pytest.fixture(scope="module")
def config() -> str:
    return '[latency]\nhrtick = "on"\n'


def ran_ms(pid: int) -> float:
    """How long all threads of a process have run (schedstat: the first number, in ns)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6


def used(daemon: RunningDaemon, requests: int) -> tuple[float, float]:
    """(wake-ups, ms of CPU) a second, over SECONDS with so many requests in each."""
    clock = threading.Event()
    wakes, ran = slept_by(daemon.pid, ""), ran_ms(daemon.pid)
    for _ in range(SECONDS):
        for _ in range(requests):
            assert daemon.run("noop", {"seconds": SECONDS}).status == 200
        clock.wait(1)
    return (slept_by(daemon.pid, "") - wakes) / SECONDS, (ran_ms(daemon.pid) - ran) / SECONDS


@pytest.mark.parametrize("requests", [0, 1])
def test_a_worker_with_a_request_a_second_sleeps(daemon: RunningDaemon, requests: int) -> None:
    daemon.deploy("noop", "def f(event): return event")
    daemon.run("noop")
    threading.Event().wait(1)  # the deploy is settled, and spares are made
    assert at_least_once(
        lambda: used(daemon, requests),
        lambda got: got[0] <= MOST_WAKE_UPS and got[1] <= MOST_CPU_MS,
        tries=TRIES,
    )
