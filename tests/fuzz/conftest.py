"""A test that was asked for thousands of examples may take its time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.fuzzing import WANTED


@pytest.hookimpl
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if WANTED and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(0))
