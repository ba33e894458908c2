"""A worker that has little to do sleeps: counted are the wake-ups and the system calls of all threads of the daemon.

How long they run is printed, and bounded only so far that none spins: the same code takes 2 ms a second on one host and 6 ms on
another."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

from tests.daemon.running import RunningDaemon
from tests.support.measured import at_least_once
from tests.support.perf_counters import Counters, NotCounted

pytestmark = pytest.mark.root
SECONDS = 5
MOST_WAKE_UPS = 10
"""The wake-ups of all threads together, in a second."""
MOST_SYSTEM_CALLS = 60
"""The system calls of all threads together, in a second, but for those that wait for events."""
TRIES = 10
"""Other programs of the machine raise the counts: where processors are contended, hrtick looks while a request is served."""
SPINS_MS = 200.0
"""In a second: a thread that spins takes a thousand."""


@pytest.fixture(scope="module")
def config() -> str:
    return '[latency]\nhrtick = "on"\n'


def ran_ms(pid: int) -> float:
    """How long all threads of a process have run (schedstat: the first number, in ns)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6


def used(daemon: RunningDaemon, requests: int) -> dict[str, float]:
    """Sleeps, system calls and ms of CPU a second, over SECONDS with so many requests in each."""
    clock = threading.Event()
    with contextlib.closing(Counters([daemon.pid])) as counters:
        ran = ran_ms(daemon.pid)
        for _ in range(SECONDS):
            for _ in range(requests):
                assert daemon.run("noop", {"seconds": SECONDS}).status == 200
            clock.wait(1)
        counts = {**counters.read(), "ms": ran_ms(daemon.pid) - ran}
    return {name: count / SECONDS for name, count in counts.items()}


@pytest.mark.parametrize("requests", [0, 1])
def test_a_worker_with_a_request_a_second_sleeps(daemon: RunningDaemon, requests: int) -> None:
    daemon.deploy("noop", "def f(event): return event")
    daemon.run("noop")
    threading.Event().wait(1)  # the deploy is settled, and spares are made
    try:
        print(at_least_once(lambda: used(daemon, requests), sleeps, tries=TRIES))
    except NotCounted as error:
        pytest.skip(str(error))


def sleeps(used: dict[str, float]) -> bool:
    few = used["sleeps"] <= MOST_WAKE_UPS and used["system calls"] <= MOST_SYSTEM_CALLS
    return few and used["ms"] < SPINS_MS
