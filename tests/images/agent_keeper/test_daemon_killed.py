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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sockd.linux.cgroups.tree import CgroupTree, Hierarchies
from tests.images.agent_keeper.conftest import UID
from tests.support.cases import case

WAIT_MS = 30_000


@pytest.mark.root
@case("I13", "SIGKILL the daemon while its image is read", expect="the agent ends, readers get an error, nothing stays")
def test_the_agent_ends_with_a_killed_daemon_and_its_readers_get_an_error(tmp_path: Path) -> None:
    with killed_daemon(tmp_path, "reader") as daemon:
        assert daemon.stdout
        assert int(daemon.stdout.readline()) in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)


@pytest.mark.root
@case("I16", "SIGKILL the daemon while a thread of its own waits for a chunk", expect="the daemon ends, too")
def test_a_killed_daemon_ends_while_a_thread_of_its_own_waits_for_a_chunk(tmp_path: Path) -> None:
    with killed_daemon(tmp_path, "thread"):
        """All of its processes have ended."""


@contextmanager
def killed_daemon(directory: Path, who_reads: str) -> Iterator[subprocess.Popen[str]]:
    """A daemon that has ended with its agent and the process that reads.

    Args: who_reads: for `tests.support.images.agent_daemon`."""
    cgroup = f"sockd-test-{uuid.uuid4().hex[:8]}"
    command = [sys.executable, "-m", "tests.support.images.agent_daemon", str(directory), cgroup, str(UID), who_reads]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        try:
            assert daemon.stdout
            pids = json.loads(daemon.stdout.readline())
            pidfds = {name: os.pidfd_open(pid) for name, pid in pids.items()}
            if who_reads == "thread":
                # The kernel tells the agent that the read is given up; a killed one may end before it can answer.
                os.kill(pids["agent"], signal.SIGSTOP)
            daemon.send_signal(signal.SIGKILL)
            for name, pidfd in pidfds.items():
                poll = select.poll()
                poll.register(pidfd, select.POLLIN)
                has_ended = poll.poll(WAIT_MS)
                os.close(pidfd)
                assert has_ended, name
            yield daemon
        finally:
            daemon.kill()
            CgroupTree(Hierarchies.detect(), cgroup).destroy_all(10)
