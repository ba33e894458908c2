"""One daemon for each module that does not kill it, with a package index of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from tests.daemon.aws_client import client_of
from tests.daemon.gate import Gate
from tests.daemon.running import RunningDaemon
from tests.support.ledger import Entry, Ledger
from tests.support.private_worker import command_without
from tests.support.servers.package_index import PackageIndex


class LedgerBesideDaemons(Ledger):
    """As everywhere, but the sandboxes and Zygotes of a daemon that lives longer than the test are that daemon's own."""

    def survivors(self) -> list[Entry]:
        theirs = {str(pid) for daemon in RunningDaemon.living for pid in daemon.pids()}
        return [entry for entry in super().survivors() if entry.kind != "process" or entry.key not in theirs]


@pytest.fixture(autouse=True)
def ledger() -> Iterator[Ledger]:
    """The count before and after each test."""
    ledger = LedgerBesideDaemons()
    yield ledger
    ledger.check()


@pytest.fixture(scope="module", autouse=True)
def ledger_of_module() -> Iterator[None]:
    """The count before the module's daemon was started and after it has ended."""
    ledger = Ledger()
    yield
    ledger.check()


@pytest.fixture(scope="module")
def index() -> Iterator[PackageIndex]:
    """Where the daemon's uv looks for packages."""
    index = PackageIndex()
    yield index
    index.close()


@pytest.fixture(scope="module")
def config() -> str:
    """TOML of the module's daemon, behind the first line of `[packages]`; a module that needs another overrides this."""
    return ""


@pytest.fixture(scope="module")
def daemon(
    tmp_path_factory: pytest.TempPathFactory,
    ledger_of_module: None,
    index: PackageIndex,
    config: str,
    request: pytest.FixtureRequest,
) -> Iterator[RunningDaemon]:
    """The module's daemon. It must end in order, and leave nothing in its cgroups."""
    state = tmp_path_factory.mktemp("daemon") / "state"
    command = command_without(request.config.getoption("broken", default=""))
    daemon = RunningDaemon.start(state, f'[packages]\nindex_url = "{index.url}"\n{config}', command=command)
    try:
        yield daemon
        assert daemon.terminate() == 0, daemon.lines
        # A log record's further lines are indented: there the words of a failed build may have a traceback.
        assert not any(re.match(r"Traceback|.*Group Traceback", line) for line in daemon.lines), "\n".join(daemon.lines)
    finally:
        daemon.close()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, ledger_of_module: None) -> Iterator[RunningDaemon]:
    """A daemon with uv's own index. It must end in order."""
    daemon = RunningDaemon.start(tmp_path_factory.mktemp("real") / "state")
    try:
        yield daemon
        assert daemon.terminate() == 0, daemon.lines
    finally:
        daemon.close()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.close()


@pytest.fixture(scope="session")
def session() -> boto3.Session:
    """One for all clients: loading the service's model takes longer than the requests."""
    return boto3.Session(region_name="eu-central-1")


@pytest.fixture
def client(session: boto3.Session, daemon: RunningDaemon) -> Iterator[Any]:
    """boto3's, for a daemon with the keys of `aws_client`."""
    client = client_of(session, daemon)
    yield client
    client.close()
