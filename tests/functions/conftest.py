"""Where functions' packages come from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers.package_index import PackageIndex


@pytest.fixture
def index() -> Iterator[PackageIndex]:
    index = PackageIndex()
    yield index
    index.close()
