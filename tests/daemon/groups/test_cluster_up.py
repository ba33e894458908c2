"""`sockd cluster up`: a group on one machine, whose workers are started again, and of which nothing is left."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.cluster import Group, kill, running
from tests.daemon.kernel_view import mounts_under
from tests.daemon.test_events import soon
from tests.support.ledger import Ledger
from tests.support.servers.postgres_server import programs

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]


@pytest.fixture
def group(ledger: Ledger) -> Iterator[Group]:
    programs()
    if shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("needs HAProxy: scripts/install-servers")
    with tempfile.TemporaryDirectory(prefix="sockd-cluster-", dir="/tmp") as directory:  # a socket's path is short
        with running(Path(directory)) as group:
            yield group
        assert mounts_under(Path(directory)) == []


def test_a_worker_of_a_group_on_one_machine_that_dies_starts_again(group: Group, tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("def f(event): return event")
    for name in ("w1", "w2", "w3"):
        group.cli(name, "deploy", str(tmp_path), "--name", "f")
    home = group.call("f", 1)
    pid = group.json(home, "status")["pid"]
    kill(pid)
    assert group.call("f", 2) != home
    soon(lambda: group.call("f", 3) == home)
    again = group.json(home, "status", "--wait", "10")["pid"]
    assert again != pid
    assert {row["state"] for row in group.json(home, "workers")} == {"serving"}
