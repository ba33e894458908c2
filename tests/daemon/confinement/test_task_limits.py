"""Processes of one function: however many it starts, in however many sandboxes, the host and other functions have theirs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from sockd.linux.processes.task_shares import LEAST
from tests.daemon.gate import Gate
from tests.daemon.running import RunningDaemon
from tests.support.cases import case

pytestmark = pytest.mark.root
ALL, OF_FUNCTION, SANDBOXES = 1000, 400, 6
BOMB = """
import os, select
from gate import wait
def f(event):
    children = 0
    try:
        while True:
            if os.fork() == 0:
                select.poll().poll()
            children += 1
    except BlockingIOError:
        wait(event)
    return children
"""


@pytest.fixture(scope="module")
def config() -> str:
    return f"[sandbox]\npids = {ALL}\nfunction_pids = {OF_FUNCTION}\n"


def tree_limit(daemon: RunningDaemon) -> str:
    from sockd.linux.cgroups.tree import Hierarchies

    pids = Hierarchies.detect().pids
    assert pids is not None
    with open(f"{pids.base}/{daemon.cgroup}/pids.max") as file:
        return file.read().strip()


@case(
    "D13",
    f"{SANDBOXES} fork bombs of one function at once, in a worker with {ALL} processes for all",
    expect=f"together they have {OF_FUNCTION} or a little more; another function is deployed and answers",
)
def test_fork_bombs_of_one_function_leave_others_their_processes(daemon: RunningDaemon, gate: Gate) -> None:
    assert tree_limit(daemon) == str(ALL)
    daemon.deploy("bomb", {"f.py": BOMB, "gate.py": Gate.CODE}, timeout_s=60, memory_mb=256, concurrency=SANDBOXES)
    with ThreadPoolExecutor(SANDBOXES) as pool:
        bombs = [pool.submit(daemon.call, "bomb", gate.port) for _ in range(SANDBOXES)]
        for _ in bombs:
            gate.arrived()
        daemon.deploy("neighbour", "def f(event): return event")
        assert daemon.call("neighbour", 1) == 1
        gate.open()
        counts = [bomb.result() for bomb in bombs]
    # Of each sandbox one is the handler's own process, and the first of its pid namespace may be another.
    assert sum(counts) <= OF_FUNCTION + SANDBOXES * LEAST
    assert min(counts) >= LEAST - 4


def test_what_a_function_had_it_has_again(daemon: RunningDaemon, gate: Gate) -> None:
    daemon.deploy("again", {"f.py": BOMB, "gate.py": Gate.CODE}, timeout_s=60, memory_mb=256, reuse_sandbox=False)
    counts = []
    with ThreadPoolExecutor(1) as pool:
        for _ in range(4):
            bomb = pool.submit(daemon.call, "again", gate.port)
            gate.arrived()
            gate.open()
            counts.append(bomb.result())
            daemon.when(lambda: daemon.status()["cgroups"]["recycling"] == 0)
    assert min(counts) >= OF_FUNCTION // 4 - 4
