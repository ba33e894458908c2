"""One daemon for each module that does not kill it, with a package index of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.daemon.running import Gate, RunningDaemon
from tests.support.package_index import PackageIndex


@pytest.fixture(scope="module")
def index() -> Iterator[PackageIndex]:
    """Where the daemon's uv looks for packages."""
    index = PackageIndex()
    yield index
    index.close()


@pytest.fixture(scope="module")
def config() -> str:
    """TOML of the module's daemon; a module that needs another overrides this."""
    return ""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, index: PackageIndex, config: str) -> Iterator[RunningDaemon]:
    """The module's daemon. It must end in order, and leave nothing in its cgroups."""
    state = tmp_path_factory.mktemp("daemon") / "state"
    daemon = RunningDaemon.start(state, f'{config}\n[packages]\nindex_url = "{index.url}"\n')
    try:
        yield daemon
        assert daemon.terminate() == 0, daemon.lines
        assert not any("Traceback" in line for line in daemon.lines), "\n".join(daemon.lines)
    finally:
        daemon.close()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.close()
