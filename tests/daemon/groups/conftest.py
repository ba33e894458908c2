"""A PostgreSQL server and a group of workers for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.groups.workers import Workers
from tests.support.cases import happened  # noqa: F401  a fixture
from tests.support.ledger import Ledger
from tests.support.servers.postgres_server import PostgresServer, postgres_server, programs


@pytest.fixture
def server(ledger: Ledger) -> Iterator[PostgresServer]:
    with postgres_server(programs()) as server:
        yield server


@pytest.fixture
def workers(server: PostgresServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Workers]:
    """The group; a test starts its workers."""
    broken = request.config.getoption("broken", default="")
    workers = Workers(tmp_path, server.dsn("public"), broken=broken)
    yield workers
    workers.close()
