"""`sockd up --detach`, and clients that come before a worker listens."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sockd.client.cli.worker import detaching
from sockd.client.python.starting import Patience, Waiting, is_locked
from sockd.worker.state_dir import StateDir

SOCKD = (sys.executable, "-m", "sockd")


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """The state directory of a worker that ends with the test."""
    directory = tmp_path / "state"
    yield directory
    if is_locked(directory):
        pidfd = os.pidfd_open(int((directory / "lock").read_text()))
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        assert select.select([pidfd], [], [], 30)[0]
        os.close(pidfd)


def sockd(state_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*SOCKD, arguments[0], "--state-dir", str(state_dir), *arguments[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.root
def test_a_detached_worker_serves_when_the_command_returns(state_dir: Path) -> None:
    up = sockd(state_dir, "up", "--detach", "--listen", "127.0.0.1:0")
    assert up.returncode == 0, up.stderr
    pid = (state_dir / "lock").read_text().strip()
    assert "listening on http://127.0.0.1:" in up.stdout and f"pid {pid}" in up.stdout
    assert sockd(state_dir, "ls").returncode == 0
    log = state_dir / "worker.log"
    assert str(log) in up.stdout and log.stat().st_mode & 0o777 == 0o600
    second = sockd(state_dir, "up", "--detach", "--listen", "127.0.0.1:0")
    assert second.returncode == 1 and f"in use by the sockd with pid {pid}" in second.stderr
    assert sockd(state_dir, "ls").returncode == 0, "the first is left alone"


@pytest.mark.root
def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    up = sockd(tmp_path / "state", "up", "--detach", "--listen", "192.0.2.1:5000")
    assert up.returncode == 1 and "192.0.2.1" in up.stderr


@pytest.mark.root
def test_the_reason_is_the_error_of_a_worker_and_no_warning_before_it(tmp_path: Path) -> None:
    (tmp_path / "sockd.toml").write_text('[images]\nworker = "../x"\n')
    arguments = "--detach", "--listen", "127.0.0.1:0", "--config", str(tmp_path / "sockd.toml")
    up = sockd(tmp_path / "state", "up", *arguments)
    first, why, fix = up.stderr.splitlines()
    assert (up.returncode, first) == (1, "error: the worker did not start")
    assert why.startswith("  why: the worker cannot start: images.worker = '../x': must be "), why
    assert fix.startswith("  fix: ") and fix.endswith(f" doctor --state-dir {tmp_path}/state --config {arguments[-1]}")


def test_of_a_worker_without_an_error_of_its_own_the_reason_is_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text("error: of an earlier one\n")
    before = log.stat().st_size
    with log.open("a") as file:
        file.write("WARNING sockd: first\nTraceback\n  KeyError: error: 'x'\n")
    failure = detaching._failure(log, before)
    assert (failure.why, failure.fix) == ("WARNING sockd: first\nTraceback\n  KeyError: error: 'x'", f"less {log}")
    with log.open("a") as file:
        file.write("error: the worker cannot start\n  why: one\n    two\n  fix: less it\n")
    failure = detaching._failure(log, before)
    assert (failure.why, failure.fix) == ("the worker cannot start: one\ntwo", "less it")


@pytest.mark.root
def test_a_client_waits_for_a_worker_that_is_starting(state_dir: Path) -> None:
    """Both are started at once, so the client comes first or while the worker starts."""
    command = [*SOCKD, "up", "--state-dir", str(state_dir), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as worker:
        try:
            assert sockd(state_dir, "status", "--wait", "30").returncode == 0
        finally:
            worker.terminate()


def test_only_a_worker_that_has_its_lock_is_waited_for(tmp_path: Path) -> None:
    assert not Waiting(tmp_path, Patience()).pause()
    state = StateDir.open(tmp_path)
    try:
        assert is_locked(tmp_path) and Waiting(tmp_path, Patience()).pause()
        assert not Waiting(tmp_path, Patience(starting_s=0)).pause(), "for a bounded time"
    finally:
        state.close()
    assert not is_locked(tmp_path) and not Waiting(tmp_path, Patience()).pause()
    assert Waiting(tmp_path, Patience(absent_s=1)).pause()
