"""A house with the usual bounds, for tests that set none, and stores for backends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.events.backends import Backends, SqliteBackends
from tests.events.house import House


@pytest.fixture
def backends(tmp_path: Path) -> Backends:
    return SqliteBackends(tmp_path)


@pytest.fixture
def house(tmp_path: Path, backends: Backends) -> House:
    return House(tmp_path, backends)
