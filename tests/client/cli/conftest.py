"""One fake worker for each module of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.cli.serving import Run, Served, runner, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("state")) as served:
        yield served


@pytest.fixture
def run(served: Served) -> Run:
    return runner(served)
