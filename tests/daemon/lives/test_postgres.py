"""A worker whose events are in PostgreSQL: the server dies and comes back, the worker dies, the DSN is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.gate import WAITS, Gate
from tests.daemon.running import RunningDaemon, Start
from tests.daemon.test_events import SOON, configure, later, records, settled
from tests.support.ledger import Ledger
from tests.support.servers.postgres_server import PostgresServer, postgres_server, programs

pytestmark = pytest.mark.root


@pytest.fixture
def server(ledger: Ledger) -> Iterator[PostgresServer]:
    with postgres_server(programs()) as server:
        yield server


def settings(dsn: str) -> str:
    return f'[postgres]\ndsn = "{dsn}"\n{SOON}'


def ids_of(daemon: RunningDaemon) -> list[str]:
    return [record["requestContext"]["requestId"] for record in records(daemon, "done")]


def test_without_its_server_a_worker_serves_requests_and_runs_no_event_twice(
    server: PostgresServer, start: Start, gate: Gate
) -> None:
    daemon = start(settings(server.dsn("public")))
    daemon.deploy("echo", "def f(event): return event")
    daemon.deploy("waits", WAITS, timeout_s=60)
    configure(daemon, "waits", on_success="directory:done")
    running = later(daemon, "waits", gate.port)
    gate.arrived()
    server.crash()
    assert daemon.call("echo", 1) == 1
    refused = daemon.run("echo", 2, X_Amz_Invocation_Type="Event")
    assert (refused.status, refused.json["errorType"]) == (503, "Database.Unavailable")
    assert refused.headers["retry-after"]
    gate.open()
    server.start()
    settled(daemon)
    assert ids_of(daemon) == [running] and gate.nobody_comes()


def test_the_worker_that_follows_a_killed_one_runs_its_events(server: PostgresServer, start: Start, gate: Gate) -> None:
    first = start(settings(server.dsn("public")))
    first.deploy("waits", WAITS, timeout_s=60, concurrency=1)
    configure(first, "waits", on_success="directory:done")
    accepted = [later(first, "waits", gate.port) for _ in range(2)]
    gate.arrived()
    first.kill()
    second = start(settings(server.dsn("public")))
    for _ in accepted:
        gate.arrived()
        gate.open()
    settled(second)
    assert sorted(ids_of(second)) == sorted(accepted)
    assert not (second.state / "events.sqlite").exists()


def test_a_database_that_cannot_be_reached_ends_the_start_with_what_to_do(
    tmp_path: Path, server: PostgresServer
) -> None:
    daemon = RunningDaemon.launch(tmp_path / "state", settings(server.dsn("public", database="none")))
    try:
        assert daemon.wait() == 1
        assert any('database "none" does not exist' in line and "createdb" in line for line in daemon.lines)
        assert not any(line.startswith("Traceback") for line in daemon.lines)
    finally:
        daemon.close()
