"""G6 to G12: what others do to a worker's state, cgroups, mounts, clock and memory; clients that go; and time."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.daemon.gate import WAITS, Gate
from tests.daemon.kernel_view import cgroup_directories, mounts_under, open_fds, rss_kb
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.faults.daemon.lives import Lives
from tests.faults.daemon.telling import TYPED
from tests.support.cases import Happened, case
from tests.support.plans import Plans
from tests.support.private_worker import PrivateWorker
from tests.support.servers.package_index import PackageIndex, wheel
from tests.support.threads import in_background
from tests.support.worker_processes import look_at

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

DAY_S = 86400.0
CYCLES, REQUESTS = 300, 20_000
SLOPE_KB = 8 * 1024
"""Most that the daemon may grow by over the second half of the soak."""


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def scramble(file: Path) -> None:
    file.write_bytes(os.urandom(max(file.stat().st_size, 100)))


def newer(file: Path) -> None:
    with sqlite3.connect(file) as registry:
        registry.execute("PRAGMA user_version = 99")
    registry.close()


REFUSALS: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut in half": (truncate, "move registry.sqlite"),
    "random bytes": (scramble, "move registry.sqlite"),
    "of a newer sockd": (newer, "written by a newer sockd"),
}


@case(
    "G6",
    "the registry is cut, scrambled; code and learned.json are lost or scrambled",
    expect="it refuses and says how to recover, or rebuilds; it never serves wrong code",
    default=False,
)
def test_corrupted_state(state: Path, index: PackageIndex, happened: Happened) -> None:
    lives = Lives(state, index)
    try:
        daemon = lives.start()
        first = daemon.deploy("one", "def f(event): return 1")
        daemon.deploy("two", "def f(event): return 2")
        lives.end()
        whole = state.with_name("whole")
        shutil.copytree(state, whole, symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
        for did, (harm, words) in REFUSALS.items():
            (state / "registry.sqlite").unlink()
            shutil.copy(whole / "registry.sqlite", state)
            harm(state / "registry.sqlite")
            refused = RunningDaemon.launch(state)
            try:
                assert refused.wait() not in (0, None), refused.lines
            finally:
                refused.end_reading()
            text = " ".join(refused.lines)
            assert words in text and "Traceback" not in text, text
            happened(f"a registry {did}: {text[:110]}…")
        shutil.copy(whole / "registry.sqlite", state)
        scramble_learned(state)
        shutil.rmtree(state / "code" / first["version"])
        daemon = lives.start_unchecked()
        answer = daemon.run("one")
        assert answer.status >= 400 and answer.json["errorType"], answer
        assert daemon.call("two") == 2
        happened(f"lost code: {answer.status} {answer.json['errorType']}; the others are served")
        daemon.deploy("one", "def f(event): return 1")
        assert daemon.call("one") == 1
        assert daemon.terminate() == 0
    finally:
        lives.close()


def scramble_learned(state: Path) -> None:
    (state / "learned.json").write_text('{"format": 1, "imports": ')


@case(
    "G7",
    "idle cgroups are removed, all Zygotes and sandboxes are killed, the base is unmounted",
    expect="the sandbox is replaced, or the request has a typed error and the daemon recovers or ends and says so",
    default=False,
)
def test_taken_away(state: Path, index: PackageIndex, happened: Happened) -> None:
    lives = Lives(state, index, "[sandbox]\ncgroup_pool = 4\n")
    try:
        daemon = lives.start()
        daemon.deploy("f", "def f(event): return event")
        assert daemon.call("f", 1) == 1
        came = []
        for directory in sandbox_cgroups(daemon):
            with suppress(OSError):
                directory.rmdir()
        for _ in range(8):  # idle sandboxes are used up; then one of the pool's is taken
            for process in filter(None, map(look_at, daemon.pids())):
                if process.kind in ("sandbox", "zygote", "root zygote"):
                    with suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGKILL)
            answer = daemon.run("f", 2)
            assert answer.status == 200 or answer.json["errorType"] in TYPED, answer
            came.append("answered" if answer.status == 200 else answer.json["errorType"])
        daemon.when(lambda: daemon.run("f", 2).status == 200)
        happened(f"empty cgroups removed, all Zygotes and sandboxes killed: {', '.join(came)}")
        enter = ["nsenter", f"--mount=/proc/{daemon.pid}/ns/mnt", "umount", "-l"]
        subprocess.run([*enter, str(state / "base")], check=False, capture_output=True)
        answer = daemon.run("f", 3)
        daemon.deploy("g", "def f(event): return event")
        cold = daemon.run("g", 3)
        assert cold.status == 200 or cold.json["errorType"] in TYPED, cold
        happened(f"base unmounted: warm {answer.status}, cold {cold.status}")
        assert daemon.terminate() == 0, daemon.lines
        assert mounts_under(state) == []
    finally:
        lives.close()


def sandbox_cgroups(daemon: RunningDaemon) -> list[Path]:
    return [path for top in cgroup_directories(daemon.cgroup) for path in top.glob("sandbox-*")]


@case(
    "G8",
    "the daemon's wall clock jumps a day ahead, then two days back (as Python reads it: the host's is everybody's)",
    expect="no sandbox, Zygote or request expires",
    default=False,
)
def test_a_clock_that_jumps(failing_with_idle: PrivateWorker, plans: Plans, gate: Gate, happened: Happened) -> None:
    worker = failing_with_idle
    packed = wheel("lib", "1.0", {"lib.py": ""})
    worker.deploy("f", "import lib\ndef f(event): return event", requirements=["lib"], wheels=[packed])
    sandbox = worker.invoke("f", 1).headers["x-sockd-sandbox"]
    zygotes = worker.daemon.status()["zygotes"]
    try:
        for offset_s in (DAY_S, -DAY_S, 0.0):
            plans.offset_s = offset_s
            answer = worker.invoke("f", offset_s)
            assert answer.json == offset_s and answer.headers["x-sockd-sandbox"] == sandbox
            worker.daemon.deploy("new", f"def f(event): return {offset_s}")
            assert worker.call("new") == offset_s
            assert worker.daemon.status()["zygotes"] == zygotes
    finally:
        plans.offset_s = 0.0
    happened(f"{sandbox} served before and after each jump, deploys too")


@pytest.fixture
def failing_with_idle(plans: Plans, tmp_path: Path) -> object:
    worker = PrivateWorker(tmp_path, command=plans.command)
    yield worker
    worker.close()


@case(
    "G9",
    "functions need more memory than the worker may give (its budget: this suite starves no machine of others)",
    expect="idle sandboxes are evicted, the oldest first; nobody is refused",
    default=False,
)
def test_memory_pressure(state: Path, index: PackageIndex, happened: Happened) -> None:
    lives = Lives(state, index, "[sandbox]\nmemory_mb = 512\npause_after_s = 60\n[zygote]\nspares = 0\n")
    try:
        daemon = lives.start()
        for number in range(5):
            daemon.deploy(f"f{number}", f"def f(event): return {number}", memory_mb=120)
        for number in range(4):
            assert daemon.call(f"f{number}") == number
        answers = [daemon.run(f"f{number}") for number in (4, 3, 2, 1, 0)]
        cold = [answer.headers["x-sockd-cold"] for answer in answers]
        assert [answer.json for answer in answers] == [4, 3, 2, 1, 0]
        assert cold == ["1", "0", "0", "0", "1"], cold
        lives.end()
        happened("the fifth evicted the first, and only that; then the first evicted another")
    finally:
        lives.close()


@case(
    "G10",
    "an upgrade with sandboxes running: SIGTERM, then a start on the old state; and a downgrade",
    expect="functions are found again; a state of a newer version is refused with a message",
    default=False,
)
def test_an_upgrade(state: Path, index: PackageIndex, happened: Happened) -> None:
    lives = Lives(state, index)
    try:
        daemon = lives.start()
        for number in range(4):
            daemon.deploy(f"f{number}", f"def f(event): return {number}")
            daemon.call(f"f{number}")
        lives.end()
        daemon = lives.start()
        assert [daemon.call(f"f{number}") for number in range(4)] == [0, 1, 2, 3]
        lives.end()
        newer(state / "registry.sqlite")
        refused = RunningDaemon.launch(state)
        try:
            assert refused.wait() not in (0, None)
        finally:
            refused.end_reading()
        (line,) = [line for line in refused.lines if "newer" in line]
        happened(line.strip()[:150])
    finally:
        lives.close()


@case(
    "G11",
    "clients go away in the middle of their requests",
    expect="the functions finish, their places are free again, later clients are answered",
    default=False,
)
def test_clients_that_go(worker: PrivateWorker, gate: Gate, happened: Happened) -> None:
    worker.deploy("f", WAITS, concurrency=2)
    for _ in range(10):
        connections = [http.client.HTTPConnection("127.0.0.1", worker.daemon.port) for _ in range(2)]
        for connection in connections:
            connection.request("POST", "/run/f", str(gate.port))
            gate.arrived()
        for connection in connections:
            connection.close()
        gate.open()
    with in_background(lambda: worker.call("f", gate.port)) as answer:
        gate.arrived()
        gate.open()
        assert answer() == "go"
    happened("20 clients gone, a place for the next")


@case(
    "G12",
    "hundreds of deploys and removals, tens of thousands of requests",
    expect="memory, descriptors, mounts and cgroups stay level",
    default=False,
)
def test_a_soak(worker: PrivateWorker, happened: Happened) -> None:
    def lap(cycles: int, requests: int) -> tuple[int, int, int]:
        connection = http.client.HTTPConnection("127.0.0.1", worker.daemon.port)
        worker.deploy("steady", "def f(event): return event")
        for number in range(requests):
            connection.request("POST", "/run/steady", str(number))
            assert connection.getresponse().read() == str(number).encode()
        connection.close()
        for number in range(cycles):
            with suppress(DeployFailed):
                worker.deploy("brief", f"def f(event): return {number}")
                assert worker.call("brief") == number
                worker.daemon.remove("brief")
        worker.settle()
        directories = sum(1 for top in cgroup_directories(worker.daemon.cgroup) for _ in os.walk(top))
        return rss_kb(worker.daemon.pid), len(open_fds(worker.daemon.pid)), directories

    lap(CYCLES // 3, REQUESTS // 3)
    before = lap(CYCLES // 3, REQUESTS // 3)
    after = lap(CYCLES // 3, REQUESTS // 3)
    happened(
        f"RSS, descriptors, cgroups: {before} then {after} after {CYCLES // 3} deploys, {REQUESTS // 3} requests more"
    )
    assert after[0] - before[0] < SLOPE_KB
    assert after[1] - before[1] < 20
    assert after[2] - before[2] < 20
