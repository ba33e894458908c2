"""Initscripts and the life of the daemon: found again by the next one, compiled anew, switched off, gone with it."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.s3.process import S3Process
from tests.daemon.prefetching import READY, digest, engine_pid, fetching, patient, reading, trace
from tests.daemon.running import DeployFailed, RunningDaemon

pytestmark = pytest.mark.root

A = b"a" * 1000


@pytest.fixture
def server() -> Iterator[S3Process]:
    with S3Process() as server, server.client() as client:
        client.make_bucket("data")
        client.put("data", "a", A)
        yield server


@pytest.fixture
def daemon(tmp_path: Path, server: S3Process) -> Iterator[RunningDaemon]:
    """With a function that has a script, which has served."""
    daemon = RunningDaemon.start(tmp_path / "state")
    try:
        files = reading(init_wasm=fetching("a"))
        daemon.deploy("f", files, initscript={"wasm": "init.wasm"}, storage="sockd", env=patient(server))
        assert daemon.call("f", {"keys": ["a"]}) == [digest(A)]
        yield daemon
    finally:
        daemon.close()


def test_the_engine_goes_with_a_killed_daemon_and_the_next_daemon_finds_the_scripts(daemon: RunningDaemon) -> None:
    pidfd = os.pidfd_open(engine_pid(daemon))
    try:
        daemon.kill()
        assert select.select([pidfd], [], [], 10)[0], "the engine outlives its daemon"
    finally:
        os.close(pidfd)
    daemon.end_reading()
    for compiled in (daemon.state / "initscripts").glob("*.cwasm"):
        compiled.unlink()  # as after an upgrade of the compiler: then it is made anew
    for _ in range(2):
        again = RunningDaemon.start(daemon.state)
        try:
            again.wait_line(READY)
            answer = again.run("f", {"keys": ["a"]})
            assert answer.json == [digest(A)] and trace(again, answer)["initscript"] == "exit"
            assert again.terminate() == 0
        finally:
            again.close()


def test_a_worker_with_initscripts_off_serves_their_functions_and_refuses_new_ones(daemon: RunningDaemon) -> None:
    assert daemon.terminate() == 0
    daemon.end_reading()
    off = RunningDaemon.start(daemon.state, "[initscripts]\nenabled = false\n")
    try:
        answer = off.run("f", {"keys": ["a"]})
        assert answer.json == [digest(A)] and trace(off, answer)["initscript"] is None
        assert off.status()["initscripts"]["engine"] == "switched off (initscripts.enabled)"
        with pytest.raises(DeployFailed, match="disabled on this worker") as caught:
            off.deploy_initscript("f", fetching("a"))
        assert caught.value.type == "InvalidInitscriptException"
        assert off.manage("POST", "/functions/f/record", b"{}").json["errorType"] == "InvalidInitscriptException"
    finally:
        off.close()
