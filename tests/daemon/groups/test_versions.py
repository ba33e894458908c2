"""Workers of two versions of sockd in one group: no field of the newer one is lost, and both serve."""

from __future__ import annotations

import json
import sys

import pytest

from tests.daemon.gate import Gate
from tests.daemon.groups.workers import WAITS, Workers
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.daemon.test_events import configure, later
from tests.support.newer import LABEL
from tests.support.servers.postgres_server import PostgresServer

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]
NEWER = (sys.executable, "-m", "tests.support.newer")
ECHO = "def f(event): return event"


def test_an_older_worker_serves_what_a_newer_one_has_written_and_drops_nothing_of_it(
    workers: Workers, server: PostgresServer, gate: Gate
) -> None:
    older = workers.start("w1")
    workers.deploy("old", ECHO)
    workers.deploy("waits", WAITS, timeout_s=60)
    newer = workers.start("w2", python=NEWER)
    newer.deploy("new", ECHO, env={"A": "b"})
    workers.wait_for("new", lambda function: "version_number" in function)
    assert [each.call(name, 1) for each in (older, newer) for name in ("old", "new", "old")] == [1] * 6
    refuse_changes(older, "new")
    change_all(older, "old", "first")
    server.run("UPDATE configs SET label = 'kept'; UPDATE schedules SET label = 'kept'")
    change_all(older, "old", "second")
    assert newer.manage("POST", "/functions/old/versions").status == 200
    workers.wait_for("old", lambda function: True)
    assert labels(server, "functions", "old") == [LABEL]
    event_id = later(older, "waits", {"id": "x", "gate": gate.port})
    gate.arrived()
    workers.kill("w1")
    gate.open()
    gate.arrived()
    gate.open()
    workers.settled()
    assert workers.ended() == {event_id}
    assert labels(server, "functions", "new") == labels(server, "deploys", "new") == [LABEL]
    assert server.run("SELECT label FROM configs UNION SELECT label FROM schedules") == "kept"


def refuse_changes(older: RunningDaemon, name: str) -> None:
    """Have an older worker try each change of a function that a newer one has written."""
    with pytest.raises(DeployFailed) as failed:
        older.deploy(name, ECHO, env={"A": "older"})
    assert failed.value.status == 409
    changes = [
        ("POST", "/versions", ""),
        ("PUT", "/aliases/prod", json.dumps({"version": "$LATEST"})),
        ("DELETE", "", ""),
    ]
    answers = [older.manage(method, f"/functions/{name}{path}", body) for method, path, body in changes]
    assert [answer.status for answer in answers] == [409] * len(answers), answers


def change_all(older: RunningDaemon, name: str, value: str) -> None:
    """Change a function of an older worker, and what workers share besides, in tables of the newer one."""
    older.deploy(name, ECHO, env={"A": value})
    configure(older, "waits", on_success="directory:done")
    schedule = {"function": name, "expression": "rate(1 day)", "event": value}
    assert older.manage("PUT", "/schedules/daily", json.dumps(schedule)).status == 200


def labels(server: PostgresServer, table: str, name: str) -> list[str]:
    """Return the labels of a function as the newer worker has stored them."""
    column = "value" if table == "functions" else "config"
    return server.run(f"SELECT {column}::json->>'label' FROM {table} WHERE name = '{name}'").split("\n")
