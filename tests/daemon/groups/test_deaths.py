"""Workers of a group that are killed, frozen and stopped: what becomes of their events, and of the workers."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
from http.client import HTTPException

import pytest

from tests.daemon.gate import Gate
from tests.daemon.groups.workers import CONCURRENCY, DRAIN_NOTICE_S, WAITS, Workers
from tests.daemon.running import DEADLINE_S, RunningDaemon
from tests.daemon.test_events import COUNTED, Tally, configure, later, soon
from tests.support.cases import case
from tests.support.servers.postgres_server import PostgresServer
from tests.support.threads import at_once, in_background

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]
noticed = pytest.mark.parametrize("drain_notice_s", [DRAIN_NOTICE_S])
"""A test that sees that a worker is to end."""
EVENTS = 250


def accept(daemon: RunningDaemon, name: str, count: int, **event: object) -> set[str]:
    """Have a function run so many times later; return the events' ids."""
    return {later(daemon, name, {"id": f"{daemon.pid}-{number}", **event}) for number in range(count)}


@case("W1", "kill -9 of a worker with events that run and wait", expect="all run on another, twice only what ran")
def test_events_of_a_killed_worker_run_on_another_and_none_is_lost(workers: Workers, gate: Gate) -> None:
    dying, living = (workers.start(name) for name in ("w1", "w2"))
    workers.deploy("waits", WAITS, timeout_s=60, concurrency=4)
    configure(dying, "waits", on_success="directory:done")
    accepted = accept(dying, "waits", 5, gate=gate.port)
    ran = [gate.arrived(), gate.arrived()]
    workers.kill("w1")
    gate.open()
    ran += [_one_comes(gate) for _ in accepted]
    workers.settled()
    assert workers.ended() == accepted
    assert len(ran) == 7 and len(set(ran)) == 5 and gate.nobody_comes()
    workers.wait_until("w2", w1="gone")
    assert workers.members("w2")["w1"]["taken_by"] == "w2"
    assert any("worker w1 of the group is gone: its 5 events run here" in line for line in living.lines)


def _one_comes(gate: Gate) -> str:
    name = gate.arrived()
    gate.open()
    return name


@case("W2", "kill -9 of two of three workers while they accept events", expect="each accepted event runs at least once")
def test_under_kills_each_accepted_event_runs_and_few_run_twice(workers: Workers) -> None:
    for name in ("w1", "w2", "w3"):
        workers.start(name)
    workers.deploy("counts", COUNTED)
    tally, accepted = Tally(), list[str]()
    try:
        for name in ("w1", "w2"):
            accept_until_killed(workers, name, tally.port, accepted)
        workers.wait_until("w3", w1="gone", w2="gone")
        accepted += [f"last-{number}" for number in range(10)]
        for each in accepted[-10:]:
            later(workers.by_name["w3"], "counts", {"id": each, "port": tally.port})
        workers.settled()
    finally:
        tally.close()
    assert set(accepted) <= set(tally.seen)
    assert sum(tally.seen.values()) - len(tally.seen) <= 2 * CONCURRENCY


def accept_until_killed(workers: Workers, name: str, port: int, accepted: list[str]) -> None:
    """Send events to a worker from several clients, note those that it accepts, and kill it meanwhile."""
    daemon, enough = workers.by_name[name], len(accepted) + EVENTS

    def send(client: int) -> None:
        for number in itertools.count():
            event_id = f"{name}-{client}-{number}"
            try:
                later(daemon, "counts", {"id": event_id, "port": port})
            except (OSError, AssertionError, ValueError, HTTPException):
                return  # the worker is gone, and what it had not accepted is nobody's
            accepted.append(event_id)
            if client == 0 and len(accepted) > enough:
                daemon.process.kill()

    at_once(4, send)
    workers.kill(name)


@case("W3", "SIGSTOP of a worker until others have its events, SIGCONT", expect="it ends none of them and serves again")
def test_a_frozen_worker_changes_nothing_when_it_wakes_and_joins_again(
    workers: Workers, server: PostgresServer, gate: Gate
) -> None:
    frozen, living = (workers.start(name) for name in ("w1", "w2"))
    workers.deploy("waits", WAITS, timeout_s=120, concurrency=1)
    configure(frozen, "waits", on_success="directory:done")
    accepted = accept(frozen, "waits", 2, gate=gate.port)
    first = gate.arrived()
    with workers.frozen("w1"):
        workers.wait_until("w2", w1="gone")
        again = gate.arrived()
    assert again == first
    workers.wait_until("w2", w1="serving")
    gate.open(most=1)  # the woken worker's attempt ends
    soon(lambda: frozen.status()["events"]["attempts"].get("ok") == 1 and not frozen.status()["events"]["running"])
    rows = "SELECT worker, running, attempts, deaths FROM events ORDER BY seq"
    assert server.run(rows).split() == ["w2|t|1|1", "w2|f|0|0"]
    gate.open()
    _one_comes(gate)
    workers.settled()
    assert workers.ended() == accepted and gate.nobody_comes()
    answer = frozen.run("waits", {"id": "x", "gate": gate.port}, X_Amz_Invocation_Type="Event")
    assert answer.status == 202
    assert _one_comes(gate) == "x"
    workers.settled()
    assert any("joins its group again" in line for line in frozen.lines)
    assert living.process.poll() is None


@noticed
@case("W4", "SIGTERM of a worker with events that wait", expect="/healthz says so first, others run them at once")
def test_a_worker_that_is_stopped_says_so_serves_on_and_leaves_its_events(workers: Workers, gate: Gate) -> None:
    stopped, living = (workers.start(name) for name in ("w1", "w2"))
    workers.deploy("waits", WAITS, timeout_s=60, concurrency=1)
    workers.deploy("echo", "def f(event): return event")
    accepted = accept(stopped, "waits", 3, gate=gate.port)
    gate.arrived()
    stopped.signal(15)
    soon(lambda: stopped.request("GET", "/healthz").status == 503)
    assert stopped.call("echo", 7) == 7
    gate.open()
    assert stopped.wait() == 0
    del workers.by_name["w1"]
    for _ in range(len(accepted) - 1):
        _one_comes(gate)
    workers.settled()
    assert gate.nobody_comes()
    assert not any("a daemon died" in line for line in living.lines)


def test_a_worker_that_starts_again_before_it_is_missed_runs_its_own_events(workers: Workers, gate: Gate) -> None:
    for name in ("w1", "w2"):
        workers.start(name)
    workers.deploy("waits", WAITS, timeout_s=60, concurrency=1)
    accept(workers.by_name["w1"], "waits", 1, gate=gate.port)
    gate.arrived()
    with workers.frozen("w2"):  # it would take over if this machine is slow
        workers.kill("w1")
        again = workers.start("w1")
        _one_comes(gate)
        soon(lambda: again.status()["events"]["endings"].get("succeeded") == 1)


def test_each_answer_of_a_worker_in_a_group_names_it(workers: Workers) -> None:
    daemon = workers.start("w1")
    workers.deploy("echo", "def f(event): return event")
    answers = [
        daemon.run("echo", 1),
        daemon.run("none", 1),
        daemon.request("GET", "/healthz"),
        daemon.request("POST", "/2015-03-31/functions/echo/invocations", "1"),
        daemon.manage("GET", "/status"),
    ]
    assert [answer.headers.get("x-sockd-worker") for answer in answers] == ["w1"] * 5


@noticed
def test_a_worker_that_drains_fails_its_health_check_and_serves(workers: Workers) -> None:
    daemon = workers.start("w1")
    workers.deploy("echo", "def f(event): return event")
    assert daemon.manage("PUT", "/drain").json == {"draining": True}
    assert daemon.request("GET", "/healthz").status == 503 and daemon.call("echo", 1) == 1
    assert workers.members("w1")["w1"]["state"] == "draining"
    assert daemon.manage("DELETE", "/drain").json == {"draining": False}
    assert daemon.request("GET", "/healthz").status == 200
    assert workers.members("w1")["w1"]["state"] == "serving"


def test_the_workers_of_a_group_are_shown_with_their_load_and_settings(workers: Workers, gate: Gate) -> None:
    first, second = (workers.start(name) for name in ("w1", "w2"))
    workers.deploy("waits", WAITS, timeout_s=60)
    with in_background(lambda: first.call("waits", {"id": "x", "gate": gate.port})) as running:
        gate.arrived()
        soon(lambda: workers.members("w2")["w1"]["running"] == 1)
        shown = workers.members("w2")
        gate.open()
        running()
    assert shown["w1"]["address"] == f"127.0.0.1:{first.port}"
    assert shown["w2"]["address"] == f"127.0.0.1:{second.port}"
    assert shown["w1"]["configuration"] == shown["w2"]["configuration"]
    assert [shown[name]["state"] for name in ("w1", "w2")] == ["serving", "serving"]
    assert json.dumps(shown)


@case("W7", "kill -9 of a worker with an open connection", expect="when the connection ends, no other one is accepted")
def test_a_killed_worker_refuses_connections_once_its_own_have_ended(workers: Workers) -> None:
    daemon = workers.start("w1")
    with socket.create_connection((daemon.host, daemon.port), DEADLINE_S) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        daemon.process.kill()
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((daemon.host, daemon.port), DEADLINE_S).close()
    workers.kill("w1")
