"""A daemon that is killed at any moment, or robbed of its farm: what is left, and what the next one finds."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.daemon.gate import WAITS, Gate
from tests.daemon.kernel_view import cgroup_directories, wait_readable
from tests.daemon.running import DEADLINE_S, RunningDaemon, Start
from tests.support.servers.package_index import PackageIndex, wheel
from tests.support.threads import in_background

START_LIMIT_S = 5.0
"""Aim: 2 s, on a machine that does nothing else."""
UNDER_LOAD_S = 60.0
"""For 20 deploys and 60 requests, on a machine that is busy with other tests as well."""
SLOW = "import time as _t\n_end = _t.perf_counter() + 0.03\nwhile _t.perf_counter() < _end: pass\n"
GONE = (ConnectionError, http.client.HTTPException, TimeoutError)


def processes(daemon: RunningDaemon) -> list[int]:
    """pidfds of all that the daemon has running."""
    pidfds = []
    for pid in daemon.pids():
        with contextlib.suppress(ProcessLookupError):  # it has ended since
            pidfds.append(os.pidfd_open(pid))
    return pidfds


def all_gone(pidfds: list[int], deadline_s: float = DEADLINE_S) -> bool:
    gone = all(wait_readable(fd, deadline_s) for fd in pidfds)
    for fd in pidfds:
        os.close(fd)
    return gone


def killed_and_started_again(daemon: RunningDaemon, start: Start, config: str = "") -> RunningDaemon:
    """SIGKILL, and the next daemon, which must serve soon and find no process of the first."""
    pidfds = processes(daemon)
    assert pidfds
    daemon.kill()
    assert all_gone(pidfds), "processes outlived their daemon"  # without anybody's help
    again = start(config)
    assert_started_soon(again, daemon)
    assert sorted(os.listdir(daemon.state / "tmp")) in ([], ["packages"])
    assert list((daemon.state / "tmp").glob("packages/*")) == []
    return again


def assert_started_soon(again: RunningDaemon, first: RunningDaemon) -> None:
    """After a kill a start takes not much longer than on an empty directory, however busy the machine is."""
    assert again.start_s < max(START_LIMIT_S, 5 * first.start_s), (again.start_s, first.start_s)


def test_killed_while_idle(start: Start) -> None:
    daemon = start()
    daemon.deploy("kept", "def f(event): return event")
    assert daemon.call("kept", 1) == 1
    daemon = killed_and_started_again(daemon, start)
    assert [function["name"] for function in daemon.manage("GET", "/functions").json] == ["kept"]
    assert daemon.call("kept", 2) == 2
    assert daemon.terminate() == 0


def test_killed_while_it_has_many_paused_sandboxes_and_zygotes(start: Start, index: PackageIndex) -> None:
    index.add(wheel("lib", "1.0", {"lib.py": SLOW}))
    daemon = start("[sandbox]\npause_after_s = 0.001\n")
    for number in range(8):
        files = {"f.py": f"import lib\ndef f(event): return {number}", "requirements.txt": "lib"}
        daemon.deploy(f"many-{number}", files)
        daemon.call(f"many-{number}")
    daemon.when(lambda: daemon.node("lib==1.0"))
    daemon = killed_and_started_again(daemon, start)
    assert [daemon.call(f"many-{number}") for number in range(8)] == list(range(8))
    assert daemon.when(lambda: daemon.node("lib==1.0"))  # what was learned is still known


def test_killed_while_it_invokes(start: Start, gate: Gate) -> None:
    daemon = start()
    daemon.deploy("busy", WAITS, concurrency=4, timeout_s=20)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(daemon.run, "busy", gate.port) for _ in range(4)]
        for _ in range(4):
            gate.arrived()
        again = killed_and_started_again(daemon, start)
        for call in calls:  # their clients see the end at once
            with pytest.raises(GONE):
                call.result(DEADLINE_S)
    gate.open()
    with in_background(lambda: again.call("busy", gate.port)) as answer:
        gate.arrived()
        gate.open()
        assert answer() == "go"


def test_killed_while_it_installs_a_package(start: Start, index: PackageIndex) -> None:
    name, data = wheel("stuck", "1.0", {"stuck.py": f"DATA = {os.urandom(200_000)!r}"})
    index.add((name, data))
    index.stalled.add(name)
    index.stalling.clear()
    daemon = start()
    daemon.deploy("before", "def f(event): return 'old'")
    files = {"f.py": "import stuck\ndef f(event): return 'new'", "requirements.txt": "stuck"}
    with ThreadPoolExecutor(1) as pool:
        deploying = pool.submit(daemon.deploy, "before", files)
        assert index.stalling.wait(15)
        index.abandoned.clear()
        again = killed_and_started_again(daemon, start)
        assert index.abandoned.wait(DEADLINE_S)  # uv went with its daemon
        with pytest.raises((*GONE, IndexError)):
            deploying.result(DEADLINE_S)
    index.stalled.discard(name)
    assert again.call("before") == "old"
    assert again.packages() == {} and len(os.listdir(again.state / "code")) == 1
    again.deploy("before", files)
    assert again.call("before") == "new"


def test_killed_while_a_zygote_is_being_made(start: Start, index: PackageIndex, gate: Gate) -> None:
    """The package waits in the Zygote's import: there the test has time to kill."""
    code = f"""
import os, socket
{SLOW}
if os.getpid() != 1:
    with socket.create_connection(('127.0.0.1', {gate.port})) as s:
        s.sendall(b'here\\n')
        s.recv(1)
"""
    index.add(wheel("waiting", "1.0", {"waiting.py": code}))
    daemon = start()
    daemon.deploy("makes", {"f.py": "import waiting\ndef f(event): return 1", "requirements.txt": "waiting"})
    assert daemon.call("makes") == 1
    gate.arrived()
    again = killed_and_started_again(daemon, start)
    assert again.call("makes") == 1
    gate.open()


def test_killed_before_it_serves(start: Start, tmp_path: Path) -> None:
    start().close()
    for _ in range(2):
        daemon = RunningDaemon.launch(tmp_path / "state")
        try:
            while not cgroup_directories(daemon.cgroup):  # from here on it makes things
                assert daemon.process.poll() is None
            daemon.kill()
        finally:
            daemon.end_reading()
    assert start().terminate() == 0


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_random_under_load(start: Start, index: PackageIndex, seed: int) -> None:
    """Whatever was answered before the kill is true after it."""
    rng = random.Random(seed)
    index.add(wheel("lib", "1.0", {"lib.py": SLOW}))
    daemon = start("[sandbox]\npause_after_s = 0.005\n")
    deployed: dict[str, int] = {}
    countdown = itertools.count(rng.randrange(5, 60), -1)
    now = threading.Event()

    def tick() -> None:
        if next(countdown) <= 0:
            now.set()

    def churn(worker: int) -> None:
        name = f"churn-{worker}"
        for number in itertools.count(1):
            try:
                files = {"f.py": f"import lib\ndef f(event): return {number}", "requirements.txt": "lib"}
                daemon.deploy(name, files if number % 2 else {"f.py": f"def f(event): return {number}"})
                deployed[name] = number
                for _ in range(4):
                    tick()
                    assert daemon.call(name) == number
            except (*GONE, IndexError, FileNotFoundError):
                return

    with ThreadPoolExecutor(3) as pool:
        workers = [pool.submit(churn, worker) for worker in range(3)]
        assert now.wait(UNDER_LOAD_S)
        daemon.kill()
        for worker in workers:
            worker.result(30)
    again = start()
    assert_started_soon(again, daemon)
    for name, number in deployed.items():
        assert again.call(name) in (number, number + 1)  # the one under way may have been recorded
    assert again.terminate() == 0


def test_the_end_of_the_farm_ends_the_daemon_which_cleans_up_and_says_so(start: Start) -> None:
    daemon = start()
    daemon.deploy("there", "def f(event): return 1")
    daemon.call("there")
    pidfds = processes(daemon)
    (init,) = [pid for pid in daemon.pids() if inner_pids(pid)[1:] == ["1"]]
    os.kill(init, signal.SIGKILL)
    assert daemon.wait() not in (0, None)
    assert all_gone(pidfds)
    assert any("the farm ended by itself" in line for line in daemon.lines)
    assert cgroup_directories(daemon.cgroup) == []
    assert start().call("there") == 1


def inner_pids(pid: int) -> list[str]:
    """A process's numbers, from the host's pid namespace inwards; none of one that has ended."""
    try:
        return Path(f"/proc/{pid}/status").read_text().split("NSpid:")[1].splitlines()[0].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
