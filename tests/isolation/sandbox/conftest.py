"""The ladder: cgroup tree, base, farm and root Zygote once for all tests here; sandboxes and child Zygotes per test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from sockd.base.errors import BadConfig
from sockd.linux.ways import Ways
from tests.support.harness import Harness, harness_fixture
from tests.support.ledger import Ledger
from tests.support.older_kernel import release


@pytest.fixture(scope="session")
def whole_harness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """With the roots that the kernel can do best, or with those that a test asks for; or as on an older kernel."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    roots = getattr(request, "param", "auto")
    try:
        ways = (
            Ways.find(roots) if isinstance(roots, tuple) else Ways.find(release() if roots == "auto" else None, roots)
        )
    except BadConfig as error:
        pytest.skip(error.message)
    yield from harness_fixture(tmp_path_factory.mktemp("harness"), ways=ways)


@pytest.fixture
def harness(whole_harness: Harness, ledger: Ledger) -> Iterator[Harness]:
    """The harness; what a test starts in it is gone before the ledger looks."""
    try:
        yield whole_harness
    finally:
        whole_harness.settle()
