"""One state directory for each test, and what starts daemons on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.kernel_view import cgroup_directories, mounts_under
from tests.daemon.running import RunningDaemon, Start
from tests.support.ledger import Ledger
from tests.support.servers.package_index import PackageIndex


@pytest.fixture
def start(tmp_path: Path, index: PackageIndex, ledger: Ledger) -> Iterator[Start]:
    """Starts daemons on one state directory; at the end none is left, and nothing of any of them."""
    daemons: list[RunningDaemon] = []

    def start(config: str = "", **kwargs: object) -> RunningDaemon:
        text = f'[packages]\nindex_url = "{index.url}"\n{config}'
        daemons.append(RunningDaemon.start(tmp_path / "state", text, **kwargs))  # type: ignore[arg-type]
        return daemons[-1]

    yield start
    for daemon in reversed(daemons):  # the living one first: they share their cgroups' name
        daemon.close()
    for daemon in daemons:
        assert cgroup_directories(daemon.cgroup) == []
        assert not daemon.pids()
    assert mounts_under(tmp_path) == []
