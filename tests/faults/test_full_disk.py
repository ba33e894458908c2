"""The disk of the state directory is full while somebody deploys."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sockd.linux import syscalls
from sockd.linux.syscalls import MountFlag
from sockd.worker.space_reserve import RESERVE_BYTES
from tests.daemon.running import REPO, DeployFailed
from tests.support import sockd_template
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker

pytestmark = pytest.mark.root

MB = 1 << 20
STEP_BYTES = 192 * 1024
"""How much more is left free at each try."""


@pytest.fixture
def small(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PrivateWorker]:
    """A worker whose state is on a file system of 24 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    syscalls.mount("tmpfs", str(disk), "tmpfs", MountFlag.NOSUID | MountFlag.NODEV, "size=24m")
    try:
        worker = PrivateWorker(disk)
        try:
            yield worker
        finally:
            worker.close()
    finally:
        syscalls.umount(str(disk))


def fill(directory: Path, leave_bytes: int, name: str = "filling") -> Path:
    """A file that takes all of a file system but `leave_bytes`."""
    file = directory / name
    status = os.statvfs(directory)
    with open(file, "wb") as out:
        os.posix_fallocate(out.fileno(), 0, max(0, status.f_bavail * status.f_frsize - leave_bytes))
    return file


@case(
    "D12",
    "deploys with ever more room on a full disk: it fails at the upload, the extraction, the registry",
    expect="an error that says so, the old version serves, nothing of the new one is there",
)
def test_a_deploy_onto_a_full_disk_changes_nothing(small: PrivateWorker, happened: Happened) -> None:
    daemon = small.daemon
    small.deploy("app", "def f(event): return 'old'")
    assert small.call("app") == "old"
    code, tmp = daemon.state / "code", daemon.state / "tmp"
    before, at_rest = sorted(os.listdir(code)), os.listdir(tmp)
    new: dict[str, str | bytes] = {"f.py": "def f(event): return 'new'", "data": os.urandom(MB)}
    said: dict[str, int] = {}
    for leave_bytes in range(0, 4 * MB, STEP_BYTES):
        filling = fill(daemon.state, leave_bytes)
        try:
            small.deploy("app", {**new, "n": str(leave_bytes)})
            break
        except DeployFailed as error:
            said[f"{error.status} {error.message}"] = said.get(f"{error.status} {error.message}", 0) + 1
            assert error.status == 507 and "disk" in error.message, error
        finally:
            filling.unlink()
        assert small.call("app") == "old"
        assert sorted(os.listdir(code)) == before and os.listdir(tmp) == at_rest
    happened(f"{said}; with {leave_bytes >> 10} KB left it went through")
    assert sum(said.values()) >= 4
    assert small.call("app") == "new"
    assert daemon.terminate() == 0


def test_functions_are_removed_from_a_full_disk_and_their_space_is_free_again(small: PrivateWorker) -> None:
    daemon = small.daemon
    for name in ("one", "two", "three"):
        small.deploy(name, {"f.py": "def f(event): return 1", "data": os.urandom(MB)})
    reserve = daemon.state / "reserve"
    assert reserve.stat().st_blocks * 512 >= RESERVE_BYTES
    filling = fill(daemon.state, 0)
    with pytest.raises(DeployFailed, match="disk"):
        small.deploy("four", "def f(event): return 4")
    done = sockd(daemon.state, "rm", "one")
    assert done.returncode == 0, done.stderr
    held_bytes = reserve.stat().st_blocks * 512
    assert held_bytes >= RESERVE_BYTES // 4, "taken again, before anything else can"
    status = os.statvfs(daemon.state)
    assert held_bytes + status.f_bavail * status.f_frsize >= MB + RESERVE_BYTES // 2, "its code is gone"
    assert "one" not in [each["name"] for each in daemon.manage("GET", "/functions").json]
    assert small.call("two") == 1
    small.deploy("four", "def f(event): return 4")
    assert small.call("four") == 4
    more = fill(daemon.state, 0, "more")
    assert sockd(daemon.state, "rm", "two").returncode == 0, "again, without room in between"
    filling.unlink()
    more.unlink()
    until(lambda: reserve.exists() and reserve.stat().st_blocks * 512 >= RESERVE_BYTES)
    assert daemon.terminate() == 0


def sockd(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sockd", *arguments, "--state-dir", str(state)]
    return sockd_template.run(command, cwd=REPO, timeout=30)


def until(condition: Callable[[], bool], deadline_s: float = 30.0) -> None:
    """The housekeeping makes it so within seconds, and no event tells of that."""
    ends, pause = time.monotonic() + deadline_s, threading.Event()
    while not condition():
        assert time.monotonic() < ends
        pause.wait(0.05)
