"""A house with the usual bounds, for tests that set none, and a store of each kind for backends."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.events.backends import Backends, PostgresBackends, SqliteBackends
from tests.events.house import House
from tests.support.ledger import Ledger
from tests.support.postgres_server import PostgresServer, postgres_server, programs

_schemas = itertools.count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server that all tests of this process share."""
    with postgres_server(programs()) as server:
        yield server


@pytest.fixture
def postgres_dsn(request: pytest.FixtureRequest, ledger: Ledger) -> str:
    """The connection string of an empty schema."""
    with ledger.replacing():  # the first test that asks starts the server, and does not end it
        server: PostgresServer = request.getfixturevalue("postgres")
    schema = f"test_{next(_schemas)}"
    server.run(f"CREATE SCHEMA {schema}")
    return server.dsn(schema)


@pytest.fixture(params=["sqlite", "postgres"])
def backends(request: pytest.FixtureRequest, tmp_path: Path) -> Backends:
    if request.param == "sqlite":
        return SqliteBackends(tmp_path)
    return PostgresBackends(request.getfixturevalue("postgres_dsn"))


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)
