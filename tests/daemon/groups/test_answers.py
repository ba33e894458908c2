"""Requests with an Idempotency-Key in a group: a retry through another worker gets the answer of the first."""

from __future__ import annotations

from http.client import HTTPException

import pytest

from tests.daemon.gate import Gate
from tests.daemon.groups.workers import WAITS, Workers
from tests.support.servers.postgres_server import PostgresServer
from tests.support.threads import in_background

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]
UNIQUE = "import uuid\ndef f(event): return uuid.uuid4().hex"
KEY = {"Idempotency_Key": "k"}


def test_a_retry_gets_the_same_answer_from_another_worker_and_after_a_death(
    workers: Workers, server: PostgresServer
) -> None:
    first, second = (workers.start(name) for name in ("w1", "w2"))
    workers.deploy("unique", UNIQUE)
    answer = first.run("unique", 1, **KEY)
    again = second.run("unique", 1, **KEY)
    assert (again.json, again.headers["x-sockd-replayed"], again.headers["x-sockd-worker"]) == (answer.json, "1", "w2")
    assert second.run("unique", 2, **KEY).status == 422
    workers.kill("w1")
    assert second.run("unique", 1, **KEY).json == answer.json
    server.crash()
    refused = second.run("unique", 1, Idempotency_Key="other")
    assert (refused.status, refused.json["errorType"]) == (503, "Database.Unavailable")
    assert refused.headers["retry-after"] and second.run("unique", 1).status == 200
    server.start()
    assert workers.start("w1").run("unique", 1, **KEY).json == answer.json


def test_a_retry_of_what_a_killed_worker_ran_is_run_on_another_when_it_is_dead(workers: Workers, gate: Gate) -> None:
    dying, living = (workers.start(name) for name in ("w1", "w2"))
    workers.deploy("waits", WAITS, timeout_s=60)
    event = {"id": "x", "gate": gate.port}
    with in_background(lambda: dying.run("waits", event, **KEY)) as lost:
        gate.arrived()
        workers.kill("w1")
        with pytest.raises((OSError, HTTPException)):
            lost()
    gate.open()
    with in_background(lambda: living.run("waits", event, **KEY)) as retried:
        gate.arrived()
        assert workers.members("w2")["w1"]["state"] == "gone"
        gate.open()
        assert retried().json == "go"
    assert living.run("waits", event, **KEY).headers["x-sockd-replayed"] == "1" and gate.nobody_comes()
