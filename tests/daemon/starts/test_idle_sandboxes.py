"""The handler cache of a real daemon: idle sandboxes are paused, use no CPU, come back as they were, and go when needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.daemon.gate import WAITS, Gate
from tests.daemon.kernel_view import cpu_ticks, frozen, host_pid, unified, wait_event, wait_readable
from tests.daemon.running import RunningDaemon
from tests.support.threads import at_once, in_background

CGROUP = "open('/proc/self/cgroup').read().split('0::')[1].strip()"
WHERE = f"""
from gate import wait
count = 0
def f(event):
    global count
    count += 1
    if event:
        wait(event)
    return [count, {CGROUP}]
"""
"""Waits if the event is a gate's port; how often it was called, and the cgroup that it is in."""
FILES = {"f.py": WHERE, "gate.py": Gate.CODE}
SPARES_BYTES = 2 * (16 << 20)
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def config() -> str:
    return "[sandbox]\nmemory_mb = 512\npause_after_s = 0.1\n[zygote]\nspares = 1\n"


@pytest.fixture(autouse=True)
def empty(daemon: RunningDaemon) -> None:
    """No function of an earlier test holds memory."""
    for function in daemon.manage("GET", "/functions").json:
        daemon.remove(function["name"])
    while reserved_bytes(daemon) > SPARES_BYTES:
        pass


def reserved_bytes(daemon: RunningDaemon) -> int:
    reserved: int = daemon.status()["memory"]["reserved_bytes"]
    return reserved


def directory_of(answer: list[object]) -> Path:
    return unified(str(answer[1]))


def test_a_sandbox_that_stays_idle_is_frozen_and_thaws_with_its_memory_intact(
    daemon: RunningDaemon, gate: Gate
) -> None:
    daemon.deploy("idle", FILES, concurrency=1, timeout_s=20)
    first = daemon.run("idle")
    directory = directory_of(first.json)
    wait_event(directory, "frozen", 1, DEADLINE_S)
    assert daemon.status()["sandboxes"]["paused"] == 1
    with in_background(lambda: daemon.run("idle", gate.port)) as running:
        gate.arrived()
        assert not frozen(directory)
        with in_background(
            lambda: daemon.run("idle")
        ) as waiting:  # so that it comes before the sandbox is idle for long
            wait_until_queued(daemon, 1)
            gate.open()
            second, third = running(), waiting()
    assert second.json == [2, first.json[1]]
    assert second.headers["x-sockd-origin"] == "paused" and second.headers["x-sockd-cold"] == "0"
    assert third.json[0] == 3 and third.headers["x-sockd-origin"] == "warm"
    wait_event(directory, "frozen", 1, DEADLINE_S)
    assert daemon.call("idle")[0] == 4


def wait_until_queued(daemon: RunningDaemon, count: int) -> None:
    """Returns when so many requests wait for the function's one place."""
    while daemon.status()["queued"] < count:
        pass


def test_a_paused_sandbox_uses_no_cpu_whatever_its_threads_want(daemon: RunningDaemon) -> None:
    daemon.deploy(
        "restless",
        "import os, threading\n"
        "turns = [0]\n"
        "def turn():\n"
        "    while True: turns[0] += 1\n"
        "threading.Thread(target=turn, daemon=True).start()\n"
        f"def f(event): return [turns[0], {CGROUP}]\n",
    )
    directory = directory_of(daemon.call("restless"))
    pid = host_pid(directory)
    wait_event(directory, "frozen", 1, DEADLINE_S)
    before = cpu_ticks(pid)
    daemon.deploy("meanwhile", "def f(event):\n for _ in range(10_000_000): pass", timeout_s=15)
    daemon.call("meanwhile")  # a few hundred ms of CPU for somebody else
    assert frozen(directory) and cpu_ticks(pid) == before
    turns = daemon.call("restless")[0]
    assert daemon.call("restless")[0] >= turns
    assert cpu_ticks(pid) >= before


def test_a_busy_function_is_never_paused(daemon: RunningDaemon, gate: Gate) -> None:
    """OpenLambda weakness 2: it froze and thawed at every request, and waited for both: 100 requests/s at one client."""
    daemon.deploy("busy", FILES, concurrency=1, timeout_s=20)
    with in_background(lambda: daemon.run("busy", gate.port)) as first:
        gate.arrived()
        with in_background(lambda: at_once(100, lambda n: daemon.run("busy"))) as others:
            wait_until_queued(daemon, 100)
            gate.open()
            origins = {answer.headers["x-sockd-origin"] for answer in (first(), *others())}
    assert origins <= {"spare", "zygote", "warm"}


def test_a_paused_sandbox_holds_only_the_memory_that_it_uses(daemon: RunningDaemon, gate: Gate) -> None:
    def reserved_while_it_runs() -> int:
        with in_background(lambda: daemon.call("fat", gate.port)) as running:
            gate.arrived()
            reserved = reserved_bytes(daemon)
            gate.open()
            running()
        return reserved

    daemon.deploy("fat", FILES, memory_mb=200, timeout_s=20)
    directory = directory_of(daemon.call("fat"))
    while daemon.status()["sandboxes"]["spare"] < 1:  # there is one again, and holds memory, too
        pass
    reserved = reserved_while_it_runs()
    wait_event(directory, "frozen", 1, DEADLINE_S)
    while reserved_bytes(daemon) > reserved - (180 << 20):  # the daemon hears of it after the kernel
        pass
    assert reserved_while_it_runs() == reserved
    assert daemon.call("fat")[0] == 4


def test_many_more_sandboxes_are_kept_paused_than_could_run(daemon: RunningDaemon) -> None:
    for number in range(10):
        daemon.deploy(f"kept-{number}", FILES, memory_mb=128)
    for turn in (1, 2):
        for number in range(10):
            answer = daemon.call(f"kept-{number}")
            assert answer[0] == turn
            wait_event(directory_of(answer), "frozen", 1, DEADLINE_S)
        assert daemon.status()["sandboxes"]["paused"] == 10  # 1 280 MB of limits in a budget of 512


def test_the_least_recently_used_sandbox_goes_when_another_function_needs_memory(
    daemon: RunningDaemon,
) -> None:
    for name in ("old", "middle", "young"):  # paused or not, each holds most of its memory
        daemon.deploy(name, {**FILES, "f.py": f"ballast = b'x' * (125 << 20)\n{WHERE}"}, memory_mb=150)
    for name in ("old", "middle", "young", "old"):  # `middle` is the least recently used
        daemon.call(name)
    evicted = daemon.status()["evictions"]
    daemon.deploy("newcomer", "def f(event): return event", memory_mb=150)
    assert daemon.call("newcomer", "in") == "in"
    assert daemon.status()["evictions"] > evicted
    assert daemon.call("old")[0] == 3


def test_no_request_fails_for_memory_when_functions_displace_one_another(
    daemon: RunningDaemon,
) -> None:
    for number in range(6):
        daemon.deploy(f"big-{number}", "def f(event): return event", memory_mb=150, concurrency=2, timeout_s=15)
    assert at_once(36, lambda n: daemon.call(f"big-{n % 6}", n)) == list(range(36))
    memory = daemon.status()["memory"]
    assert 0 <= memory["reserved_bytes"] <= memory["total_bytes"]


def test_a_busy_sandbox_is_never_evicted(daemon: RunningDaemon, gate: Gate) -> None:
    daemon.deploy("working", WAITS, memory_mb=300, timeout_s=20)
    daemon.deploy("pushing", "def f(event): return event", memory_mb=150)
    daemon.deploy("pushing2", "def f(event): return event", memory_mb=150)
    with in_background(lambda: daemon.run("working", gate.port)) as working:
        gate.arrived()
        assert [daemon.call(name, 1) for name in ("pushing", "pushing2") * 3] == [1] * 6
        gate.open()
        assert working().json == "go"


def test_all_memory_comes_back_when_functions_are_removed(daemon: RunningDaemon) -> None:
    daemon.deploy("brief", FILES)
    daemon.call("brief")
    daemon.remove("brief")
    sandboxes = daemon.status()["sandboxes"]
    assert sandboxes["idle"] + sandboxes["paused"] == 0
    while reserved_bytes(daemon) > SPARES_BYTES:  # it is given back when the last process is gone
        pass


def test_a_sandbox_that_dies_while_idle_or_paused_is_replaced_before_a_request(daemon: RunningDaemon) -> None:
    import os
    import signal

    daemon.deploy("killed", FILES)
    for pause in (False, True):
        directory = directory_of(daemon.call("killed"))
        if pause:
            wait_event(directory, "frozen", 1, DEADLINE_S)
        # Not the cgroup is waited for: it may have become another sandbox's by then.
        pidfd = os.pidfd_open(host_pid(directory))
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            assert wait_readable(pidfd, DEADLINE_S)
        finally:
            os.close(pidfd)
        answer = daemon.run("killed")
        assert answer.status == 200 and answer.json[0] == 1 and answer.headers["x-sockd-cold"] == "1"
        assert daemon.status()["sandboxes"]["busy"] == 0
