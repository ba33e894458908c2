"""G2 and G3: a daemon that gets a signal to stop, and one that finds another on its state directory."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.daemon.gate import WAITS, Gate
from tests.daemon.running import RunningDaemon
from tests.faults.daemon.lives import Lives
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker
from tests.support.servers.package_index import PackageIndex
from tests.support.threads import in_background

pytestmark = pytest.mark.root

DRAIN_S = 0.5


@case(
    "G2",
    "SIGTERM with a request under way, one in the queue, one that comes late, and one that never ends",
    expect="the first two are answered, the third gets 503, the last ends with the grace period; exit 0, nothing left",
)
def test_a_stop_drains(state: Path, index: PackageIndex, gate: Gate, up: tuple[str, ...], happened: Happened) -> None:
    lives = Lives(state, index, command=up)
    try:
        daemon = lives.start()
        daemon.deploy("ends", WAITS, concurrency=1, timeout_s=20)
        with in_background(lambda: daemon.call("ends", gate.port)) as first:
            gate.arrived()
            with in_background(lambda: daemon.call("ends", gate.port)) as queued:
                while daemon.status()["queued"] < 1:
                    pass
                daemon.signal(signal.SIGTERM)
                while daemon.request("GET", "/healthz").status == 200:
                    pass
                late = daemon.run("ends", gate.port)
                assert late.status == 503 and int(late.headers["retry-after"]) >= 1
                gate.open()
                assert first() == "go"
                gate.arrived()
                gate.open()
                assert queued() == "go"
        assert daemon.wait() == 0
        happened(f"both answered, then {late.status} {late.json['errorType']}")
    finally:
        lives.close()
    stubborn = Lives(state, index, f"[http]\ndrain_s = {DRAIN_S}\n", command=up)
    try:
        daemon = stubborn.start()
        daemon.deploy("never", WAITS, timeout_s=900)
        with in_background(lambda: daemon.run("never", gate.port)) as stuck:
            gate.arrived()
            began = time.monotonic()
            stubborn.end()
            took = time.monotonic() - began
            answer = stuck()
        assert took < DRAIN_S + 12
        assert (answer.status, answer.json["errorType"]) == (503, "ServiceUnavailableException")
        assert gate.gone()
        happened(f"with one that never ends: {took:.1f} s at a grace of {DRAIN_S} s, and it got {answer.status}")
    finally:
        stubborn.close()


@case(
    "G3",
    "a second daemon on a state directory that is in use, by its name and by a link to it",
    expect="it refuses and names the pid of the first, which serves on",
)
def test_a_second_daemon_refuses(worker: PrivateWorker, tmp_path: Path, happened: Happened) -> None:
    (tmp_path / "link").symlink_to(worker.daemon.state)
    worker.deploy("mine", "def f(event): return event")
    assert worker.call("mine", 1) == 1
    for state in (worker.daemon.state, tmp_path / "link"):
        second = RunningDaemon.launch(state)
        try:
            assert second.wait() not in (0, None)
            words = [line.strip() for line in second.lines if f"pid {worker.daemon.pid}" in line]
        finally:
            if second.process.poll() is None:
                second.kill()
            second.end_reading()
        assert words, second.lines
    happened(words[0].replace(str(worker.daemon.state), "…"))
    assert worker.call("mine", 2) == 2
