"""A backup of a worker in a group: refused, with what is backed up instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.daemon.groups.test_views import sockd
from tests.daemon.groups.workers import GROUP, Workers

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]


def test_a_backup_of_a_worker_in_a_group_is_refused_with_what_to_do(workers: Workers, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    daemon = workers.start("w1")
    refused = sockd(daemon, "backup", str(copy))
    assert refused.returncode and f"in a group, {GROUP}" in refused.stderr and "pg_dump" in refused.stderr
    workers.kill("w1")
    (daemon.state / "registry.joined.sqlite").touch()
    stopped = sockd(daemon, "backup", str(copy))
    assert stopped.returncode and "in a group" in stopped.stderr and "pg_dump" in stopped.stderr
    assert not copy.exists()
