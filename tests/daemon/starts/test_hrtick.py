"""A daemon's processors tick finely while a function computes and others are called, until nobody is called any more."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sockd.linux.latency.hrtick import LASTS_S
from tests.daemon.running import RunningDaemon
from tests.support.kernel_threads import slept_by, threads_of

pytestmark = pytest.mark.root
PREFIX = "hrtick/"
SPINS = """
import os, time
def f(event):
    ends = time.monotonic() + event
    children = []
    for _ in range(8):
        pid = os.fork()
        if not pid:
            while time.monotonic() < ends:
                pass
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
"""


@pytest.fixture(scope="module")
def config() -> str:
    return '[latency]\nhrtick = "on"\n'


@contextmanager
def computing(daemon: RunningDaemon, seconds: float) -> Iterator[threading.Thread]:
    """A function that takes what processors there are."""
    thread = threading.Thread(target=daemon.run, args=("spins", seconds))
    thread.start()
    yield thread
    thread.join()


def test_it_ticks_while_one_computes_and_another_is_called(daemon: RunningDaemon) -> None:
    daemon.deploy("spins", SPINS, cpus=os.cpu_count())
    daemon.deploy("quick", "def f(event): return event")
    before = slept_by(daemon.pid, PREFIX)
    with computing(daemon, 1.0) as thread:
        while slept_by(daemon.pid, PREFIX) - before < 200:
            assert daemon.run("quick", 1).json == 1
            assert thread.is_alive(), "nothing ticked"


def test_ticks_end_with_the_requests(daemon: RunningDaemon) -> None:
    daemon.deploy("quick", "def f(event): return event")
    assert daemon.run("quick", 1).json == 1
    nothing, seen = threading.Event(), -1
    nothing.wait(2 * LASTS_S)
    seen = slept_by(daemon.pid, PREFIX)
    nothing.wait(5 * LASTS_S)
    assert slept_by(daemon.pid, PREFIX) == seen


def test_only_the_daemon_has_such_threads(daemon: RunningDaemon) -> None:
    daemon.deploy("quick", "def f(event): return event")
    daemon.run("quick", 1)
    assert len(threads_of(daemon.pid, PREFIX)) == len(os.sched_getaffinity(daemon.pid))
    others = [pid for pid in daemon.pids() if pid != daemon.pid]
    assert others
    for pid in others:
        assert os.sched_getscheduler(pid) == os.SCHED_OTHER
        assert threads_of(pid, PREFIX) == []


def test_switched_off_there_are_none(tmp_path: Path) -> None:
    daemon = RunningDaemon.start(tmp_path / "state", '[latency]\nhrtick = "off"\n')
    try:
        assert threads_of(daemon.pid, PREFIX) == []
    finally:
        daemon.close()
