"""Strangers' bytes, made up at random: whatever parses them answers, refuses or hangs up, and never breaks.

Hypothesis makes the bytes; what it once found stays in the tests as an explicit example. `SOCKD_FUZZ_EXAMPLES=5000` asks
for more than the few that fit into an ordinary run; a test may then take its time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.fuzzing import WANTED


@pytest.hookimpl
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if WANTED and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(0))
