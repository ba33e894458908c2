"""A harness with the usual bounds, for tests that set none, and a store of each kind for backends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.events.backends import Backends, PostgresBackends, SqliteBackends
from tests.events.harness import Harness


@pytest.fixture(params=["sqlite", "postgres"])
def backends(request: pytest.FixtureRequest, tmp_path: Path) -> Backends:
    if request.param == "sqlite":
        return SqliteBackends(tmp_path)
    return PostgresBackends(request.getfixturevalue("postgres_dsn"))


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path)
