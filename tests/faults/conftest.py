"""The folder's worker, with deadlines short enough that a process which hangs is given up within a case."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.daemon.gate import Gate
from tests.support.cases import happened
from tests.support.emulated import SLOWER
from tests.support.private_worker import PrivateWorker, ledger, worker

__all__ = ["happened", "ledger", "worker"]

CONFIG = f"""
[zygote]
spares = 2
import_deadline_s = {1.5 * SLOWER}
canary_deadline_s = {1.5 * SLOWER}
memory_mb = 96
[sandbox]
spawn_deadline_s = {4.0 * SLOWER}
memory_mb = 4096
"""


@pytest.fixture(scope="package")
def package_worker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateWorker]:
    """The folder's one worker."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    broken = request.config.getoption("broken", default="")
    worker = PrivateWorker(tmp_path_factory.mktemp("worker"), broken=broken, zygotes=CONFIG)
    try:
        yield worker
    finally:
        worker.close()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.close()
