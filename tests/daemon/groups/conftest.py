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
def drain_notice_s() -> float:
    """How long a worker that is stopped serves on. Where a proxy or a test notices that it ends, a module overrides this."""
    return 0.1


@pytest.fixture
def workers(
    server: PostgresServer, tmp_path: Path, request: pytest.FixtureRequest, drain_notice_s: float
) -> Iterator[Workers]:
    """The group; a test starts its workers."""
    broken = request.config.getoption("broken", default="")
    workers = Workers(tmp_path, server.dsn("public"), broken=broken, drain_notice_s=drain_notice_s)
    yield workers
    workers.close()
