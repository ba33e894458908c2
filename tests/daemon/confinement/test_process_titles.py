"""What `ps` and `systemctl status` show of the worker's processes: the function, or the Zygote's packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from sockd_zygote import fork_server
from tests.daemon.gate import WAITS, Gate
from tests.daemon.running import RunningDaemon
from tests.support.threads import in_background

pytestmark = pytest.mark.root


def shown(daemon: RunningDaemon) -> set[tuple[str, str]]:
    """(command line, name) of every process of the daemon's cgroup, as ps reads them."""
    processes = (Path("/proc") / str(pid) for pid in daemon.pids())
    return {
        (each.joinpath("cmdline").read_bytes().rstrip(b"\0").decode(), each.joinpath("comm").read_text().strip())
        for each in processes
        if each.exists()
    }


def test_a_process_is_named_after_its_function_or_is_a_zygote(daemon: RunningDaemon, gate: Gate) -> None:
    daemon.deploy("titled-function-of-a-long-name", WAITS)
    with in_background(lambda: daemon.call("titled-function-of-a-long-name", gate.port)):
        gate.arrived()
        seen = shown(daemon)
        gate.open()
    assert ("sockd: titled-function-of-a-long-name", "titled-function") in seen
    assert ("sockd: root Zygote", "sockd-zygote") in seen
    assert not [line for line, _ in seen if len(line) > 300], seen


def test_a_zygote_is_named_after_its_packages() -> None:
    paths = ["/packages/numpy-2.3.0-abc/site", "/packages/python_dateutil-2.9-def/site"]
    assert fork_server.title(paths) == "sockd: Zygote of numpy, python_dateutil"
