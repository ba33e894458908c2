"""A house with the usual bounds, for tests that set none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.events.house import House


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)
