"""Limits of a group: its live workers divide the concurrency and the provisioned sandboxes of each function."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.daemon.gate import Gate
from tests.daemon.groups.workers import WAITS, Workers
from tests.daemon.running import RunningDaemon
from tests.daemon.test_events import soon
from tests.support.threads import at_once, in_background

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]
CALLS = 4


def test_concurrency_is_divided_by_the_live_workers_and_again_when_one_dies(workers: Workers, gate: Gate) -> None:
    living, other = (workers.start(name) for name in ("w1", "w2"))
    workers.deploy("waits", WAITS, timeout_s=60, concurrency=CALLS)
    soon(lambda: [row["divisor"] for row in workers.members("w1").values()] == [2, 2])
    event = {"id": "x", "gate": gate.port}
    with in_background(lambda: other.run("waits", event).status) as status:
        gate.arrived()
        with in_background(lambda: at_once(CALLS, lambda number: living.run("waits", event).status)) as statuses:
            for _ in range(CALLS - 1):
                gate.arrived()
            soon(lambda: workers.members("w1")["w1"]["queued"] == 1)
            assert gate.nobody_comes()
            workers.kill("w2")
            gate.arrived()
            gate.open()
            assert statuses() == [200] * CALLS
        with pytest.raises(OSError, match=r".*"):
            status()
    assert living.status()["group"]["share"] == "1/1"


def test_a_worker_runs_what_the_others_leave_of_a_functions_concurrency(workers: Workers, gate: Gate) -> None:
    """HAProxy's file sends all requests of a function to one worker."""
    home, other, _ = (workers.start(name) for name in ("w1", "w2", "w3"))
    workers.deploy("waits", WAITS, timeout_s=60, concurrency=9)
    soon(lambda: [row["divisor"] for row in workers.members("w1").values()] == [3, 3, 3])
    event = {"id": "x", "gate": gate.port}
    with in_background(lambda: at_once(9, lambda number: home.run("waits", event).status)) as statuses:
        for _ in range(9):
            gate.arrived()
        with in_background(lambda: other.run("waits", event).status) as status:
            gate.arrived()  # each worker admits one
            gate.open()
            assert (status(), statuses()) == (200, [200] * 9)


def test_provisioned_sandboxes_are_divided_and_move_to_the_worker_that_is_left(workers: Workers) -> None:
    first, second = (workers.start(name) for name in ("w1", "w2"))
    workers.deploy("echo", "def f(event): return event")
    assert first.manage("POST", "/functions/echo/versions").status == 200
    soon(lambda: [row["divisor"] for row in workers.members("w2").values()] == [2, 2])
    put = first.manage("PUT", "/functions/echo/provisioned/1", json.dumps({"wanted": 3}))
    assert put.status == 200, put
    soon(lambda: {provisioned(first), provisioned(second)} == {1, 2})
    workers.kill("w1")
    soon(lambda: provisioned(second) == 3)
    again = workers.start("w1")
    soon(lambda: {provisioned(again), provisioned(second)} == {1, 2})


def provisioned(daemon: RunningDaemon) -> Any:
    return daemon.status()["sandboxes"]["provisioned"]
