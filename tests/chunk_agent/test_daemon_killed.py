"""A SIGKILL of the daemon ends its agent and fails readers; nothing of either is left."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from sockd.kernel.cgroups.tree import CgroupTree, Hierarchies
from tests.chunk_agent.conftest import UID
from tests.support.cases import case

WAIT_MS = 30_000


@pytest.mark.root
@case("I13", "SIGKILL the daemon while its image is read", expect="the agent ends, readers get an error, nothing stays")
def test_the_agent_ends_with_a_killed_daemon_and_its_readers_get_an_error(tmp_path: Path) -> None:
    cgroup = f"sockd-test-{uuid.uuid4().hex[:8]}"
    command = [sys.executable, "-m", "tests.support.agent_daemon", str(tmp_path), cgroup, str(UID)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        try:
            assert daemon.stdout
            pids = json.loads(daemon.stdout.readline())
            pidfds = {name: os.pidfd_open(pid) for name, pid in pids.items()}
            daemon.send_signal(signal.SIGKILL)
            for name, pidfd in pidfds.items():
                poll = select.poll()
                poll.register(pidfd, select.POLLIN)
                assert poll.poll(WAIT_MS), name
                os.close(pidfd)
            assert int(daemon.stdout.readline()) in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)
        finally:
            daemon.kill()
            CgroupTree(Hierarchies.detect(), cgroup).destroy_all(10)
