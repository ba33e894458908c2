"""Workers that are broken on purpose: with failpoints, or with several lives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cases import ALL
from tests.support.emulated import SLOWER
from tests.support.ledger import Ledger
from tests.support.plans import Plans
from tests.support.private_worker import PrivateWorker, command_without
from tests.support.servers.package_index import PackageIndex

FAILING = f"""
[zygote]
import_deadline_s = {1.0 * SLOWER}
canary_deadline_s = {1.0 * SLOWER}
memory_mb = 1024
spares = 0
[sandbox]
spawn_deadline_s = {0.75 * SLOWER}
memory_mb = 4096
idle_limit = 0
[function]
init_timeout_s = {0.75 * SLOWER}
"""
"""Each invocation of this worker is a cold start, and what hangs is given up soon."""


@pytest.fixture
def everything(request: pytest.FixtureRequest) -> bool:
    """Whether the long cases run, and those of the default set at full length."""
    return bool(request.config.getoption(ALL, default=False))


@pytest.fixture(scope="session")
def broken(request: pytest.FixtureRequest) -> str:
    """The protection that this run's workers lack; "" in every run but those that show that the suite can fail."""
    return str(request.config.getoption("broken", default=""))


@pytest.fixture(scope="session")
def up(broken: str) -> tuple[str, ...]:
    """What starts a worker."""
    return command_without(broken)


@pytest.fixture(scope="module")
def index() -> Iterator[PackageIndex]:
    """Where the workers of this module look for packages."""
    index = PackageIndex()
    yield index
    index.close()


@pytest.fixture(scope="module")
def plans() -> Iterator[Plans]:
    plans = Plans()
    yield plans
    plans.close()


@pytest.fixture(scope="module")
def failing(plans: Plans, broken: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateWorker]:
    """The module's worker with failpoints. It must end in order, and leave nothing in its cgroups."""
    ledger = Ledger()
    worker = PrivateWorker(tmp_path_factory.mktemp("failing"), command=plans.command_without(broken), zygotes=FAILING)
    try:
        yield worker
        assert worker.daemon.terminate() == 0, worker.daemon.lines
    finally:
        worker.close()
    ledger.check()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory of the test's own."""
    return tmp_path / "state"
