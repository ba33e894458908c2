"""Spares of a worker where starts are rare, and where memory is short."""

from __future__ import annotations

import pytest

from tests.daemon.running import RunningDaemon

pytestmark = pytest.mark.root
NOOP = "def f(event): return event"


@pytest.fixture(scope="module")
def config() -> str:
    return "[sandbox]\nmemory_mb = 256\npause_after_s = 60\n"


def spares(daemon: RunningDaemon) -> int:
    return int(daemon.status()["sandboxes"]["spare"])


def wait_for_spare(daemon: RunningDaemon) -> None:
    while not spares(daemon):
        pass


def test_a_worker_that_never_started_a_function_has_a_spare(daemon: RunningDaemon) -> None:
    wait_for_spare(daemon)
    assert [node["spares"] for node in daemon.nodes()] == [1]
    daemon.deploy("first", NOOP, reuse_sandbox=False)
    assert daemon.run("first", 1).headers["x-sockd-origin"] == "spare"


def test_a_start_that_needs_the_memory_of_a_spare_gets_it_and_evicts_nothing(daemon: RunningDaemon) -> None:
    """Two functions of 128 MB fill the worker's 256: the second start takes the place of the spare, not of the first."""
    daemon.deploy("kept", NOOP)
    daemon.deploy("new", NOOP)
    daemon.run("kept", 1)
    wait_for_spare(daemon)
    assert daemon.run("new", 1).status == 200
    assert daemon.run("kept", 1).headers["x-sockd-cold"] == "0"
    assert spares(daemon) == 0
