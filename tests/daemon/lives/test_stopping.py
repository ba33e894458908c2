"""A daemon that gets a signal to stop: what it ends, what it refuses, when it gives up waiting, whom it tells."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.daemon.gate import WAITS, Gate
from tests.daemon.kernel_view import cgroup_directories
from tests.daemon.running import DEADLINE_S, Start
from tests.support.servers.package_index import PackageIndex, wheel
from tests.support.threads import in_background


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_lets_requests_end_refuses_new_ones_and_exits_with_0(
    start: Start, gate: Gate, number: signal.Signals
) -> None:
    daemon = start()
    daemon.deploy("ends", WAITS, concurrency=1, timeout_s=20)
    with in_background(lambda: daemon.call("ends", gate.port)) as first:
        gate.arrived()
        with in_background(lambda: daemon.run("ends", gate.port)) as waiting:
            while daemon.status()["queued"] < 1:
                pass
            daemon.signal(number)
            while (health := daemon.request("GET", "/healthz")).status == 200:
                pass
            assert (health.status, health.json) == (503, {"status": "draining"})
            refused = daemon.run("ends", gate.port)
            assert refused.status == 503 and int(refused.headers["retry-after"]) >= 1
            gate.open()
            assert first() == "go"
            gate.arrived()
            gate.open()
            assert waiting().json == "go"  # it had been admitted
    assert daemon.wait() == 0
    assert cgroup_directories(daemon.cgroup) == []


def test_a_stop_has_a_deadline(start: Start, gate: Gate) -> None:
    """OpenLambda weakness 13: with a request that does not end it hung for ever, after 1, 5 or 11 SIGTERMs."""
    daemon = start("[http]\ndrain_s = 0.5\n")
    daemon.deploy("never", WAITS, timeout_s=900)
    with in_background(lambda: daemon.run("never", gate.port)) as stuck:
        gate.arrived()
        began = time.monotonic()
        assert daemon.terminate() == 0
        assert time.monotonic() - began < 10
        answer = stuck()
    assert answer.status == 503 and answer.json["errorType"] == "ServiceUnavailableException"
    assert gate.gone()


def test_a_followed_log_does_not_hold_up_a_stop(start: Start) -> None:
    daemon = start()
    daemon.deploy("followed", "def f(event): print('said')")
    daemon.run("followed")
    connection = daemon.management()
    connection.request("GET", "/functions/followed/logs?follow=1")
    response = connection.getresponse()
    assert b"said" in response.readline()
    began = time.monotonic()
    assert daemon.terminate() == 0
    assert time.monotonic() - began < 8  # and not `http.drain_s`, 20
    assert (
        response.read() == b""
    )  # the stream ends in order: http.client raises IncompleteRead where its last chunk is missing
    connection.close()


def test_the_log_names_what_a_drain_waits_for(start: Start, gate: Gate) -> None:
    daemon = start()
    daemon.deploy("slow", WAITS, timeout_s=60)
    with in_background(lambda: daemon.call("slow", gate.port)) as answered:
        gate.arrived()
        daemon.signal(signal.SIGTERM)
        daemon.wait_line(r"draining for at most 20 s; waiting for requests of slow \(1\)")
        gate.open()
        assert answered() == "go"
    assert daemon.wait() == 0


def test_an_idle_daemon_stops_at_once_and_keeps_nothing_but_its_state(start: Start) -> None:
    daemon = start()
    daemon.deploy("some", "def f(event): return 1")
    daemon.call("some")
    began = time.monotonic()
    assert daemon.terminate() == 0
    assert time.monotonic() - began < 8  # a wait for requests would take `http.drain_s`, 20
    assert os.listdir(daemon.state / "tmp") in ([], ["packages"])
    assert os.listdir(daemon.state / "base") == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_to_be_asked_to_stop_again_and_again_to_the_very_end_is_no_failure(
    start: Start, number: signal.Signals
) -> None:
    daemon = start()
    while daemon.process.poll() is None:
        daemon.signal(number)
    assert daemon.wait() == 0, daemon.lines


def test_a_stop_under_load_loses_no_request_that_was_taken(start: Start) -> None:
    daemon = start()
    daemon.deploy("loaded", "def f(event): return event", concurrency=4)
    stopped = threading.Event()
    warm = threading.Event()

    def load(worker: int) -> list[int]:
        statuses = []
        for number in itertools.count():
            try:
                statuses.append(daemon.run("loaded", number).status)
            except ConnectionError:  # the port is closed, or it closed while this one stood in its backlog
                assert stopped.is_set()
                return statuses
            if number == 20:
                warm.set()
        return statuses

    with ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(load, worker) for worker in range(4)]
        assert warm.wait(DEADLINE_S)
        stopped.set()
        assert daemon.terminate() == 0
        for each in loads:
            assert set(each.result(10)) <= {200, 503}


def test_a_deploy_under_way_does_not_hold_up_a_stop(start: Start, index: PackageIndex) -> None:
    name, data = wheel("endless", "1.0", {"endless.py": f"DATA = {os.urandom(200_000)!r}"})
    index.add((name, data))
    index.stalled.add(name)
    index.stalling.clear()
    daemon = start("[http]\ndrain_s = 0.5\n")
    with ThreadPoolExecutor(1) as pool:
        deploying = pool.submit(daemon.deploy, "half", {"f.py": "def f(e): pass", "requirements.txt": "endless"})
        assert index.stalling.wait(15)
        began = time.monotonic()
        assert daemon.terminate() == 0
        assert time.monotonic() - began < 10
        with pytest.raises(Exception):  # noqa: B017  whichever way the port closed
            deploying.result(10)
    index.stalled.discard(name)
    again = start()
    assert again.manage("GET", "/functions").json == []
    assert os.listdir(again.state / "code") == []


def test_systemd_learns_when_it_is_ready_and_when_it_stops(start: Start, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(10)
        daemon = start(env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert notify.recv(100) == b"READY=1"
        assert daemon.request("GET", "/healthz").status == 200
        assert daemon.terminate() == 0
        assert notify.recv(100) == b"STOPPING=1"
