"""The farm's launcher, as the process that frees what sandboxes leave behind."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from sockd.isolation.farm.farm import Farm
from sockd.isolation.farm.farm_init import RELEASE
from sockd.linux import mounts, syscalls
from sockd.linux.readiness import is_readable
from tests.support.harness import Harness

pytestmark = pytest.mark.root

MORE_THAN_IT_HEARS = 300
"""Trees, while it does not listen: a socket has room for two messages each of some hundred and forty (net.core.wmem_default)."""
IN_DELETE_SELF, IN_UNMOUNT = 0x400, 0x2000
FD_SETSIZE = 1024
EVENT = struct.Struct("iIII")


class Trees:
    """Detached trees, and an inotify(7) that tells when the kernel has freed one."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = self._libc.inotify_init1(os.O_CLOEXEC)
        self.fds: list[int] = []
        """Descriptors of trees; the test that releases one takes it out."""
        self._freed = 0

    def grow(self) -> None:
        self.fds.append(syscalls.new_filesystem("tmpfs", {}, mounts.PRIVATE_TMP))
        path = f"/proc/self/fd/{self.fds[-1]}".encode()
        assert self._libc.inotify_add_watch(self._inotify, path, IN_DELETE_SELF) > 0

    def freed(self, wait_s: float) -> int:
        """How many are freed by now; waits for one more, but not longer than that."""
        if is_readable(self._inotify, wait_s):
            data = os.read(self._inotify, 100 * EVENT.size)
            self._freed += sum(bool(mask & IN_UNMOUNT) for _, mask, _, _ in EVENT.iter_unpack(data))
        return self._freed

    def close(self) -> None:
        for fd in (*self.fds, self._inotify):
            os.close(fd)


@contextmanager
def trees_of(count: int) -> Iterator[Trees]:
    trees = Trees()
    try:
        for _ in range(count):
            trees.grow()
        yield trees
    finally:
        trees.close()


@contextmanager
def deaf(harness: Harness) -> Iterator[None]:
    """The launcher hears nothing meanwhile."""
    harness.farm._launcher.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        harness.farm._launcher.send_signal(signal.SIGCONT)


async def release_all(harness: Harness, trees: Trees) -> None:
    while trees.fds:
        harness.farm.release(trees.fds.pop())


def test_the_launcher_frees_a_tree_and_the_daemon_does_not(harness: Harness) -> None:
    with trees_of(1) as trees:
        with deaf(harness):
            (fd,) = trees.fds
            harness.run(release_all(harness, trees))
            assert trees.freed(0.1) == 0
            with pytest.raises(OSError, match="Bad file"):
                os.fstat(fd)
        assert trees.freed(10) == 1


@pytest.mark.parametrize("words", [0, 1])
def test_when_it_has_fallen_behind_all_trees_are_freed_nevertheless(harness: Harness, words: int) -> None:
    """Be it a tree that there is no room for any more, or the word that it may be closed."""
    with trees_of(MORE_THAN_IT_HEARS) as trees:
        with deaf(harness):
            for _ in range(words):
                harness.farm._releases.send(RELEASE)
            harness.run(release_all(harness, trees))
        while trees.freed(0) < MORE_THAN_IT_HEARS:
            harness.call(lambda: None)  # the loop turns: the launcher may be owed a last word


@contextmanager
def many_descriptors() -> Iterator[None]:
    """All numbers that select(2) takes are in use."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 2 * FD_SETSIZE:
        pytest.skip(f"RLIMIT_NOFILE is {before[1]} at most")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2 * FD_SETSIZE), before[1]))
    try:
        with ExitStack() as stack:
            while stack.enter_context(open(os.devnull)).fileno() <= FD_SETSIZE:
                pass
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_farm_of_a_daemon_with_many_descriptors_starts_and_frees_trees(harness: Harness) -> None:
    with many_descriptors(), trees_of(1) as trees:
        cgroup = harness.call(harness.pool.take)
        farm = harness.run(Farm.start(harness.base, cgroup, lambda: None, harness.ways))
        try:
            (tree,) = trees.fds
            trees.fds.clear()
            harness.call(lambda: farm.release(tree))
            assert trees.freed(10) == 1
            farm._releases.send(RELEASE)  # raises, if the tree was freed by the launcher's death
        finally:
            harness.run(farm.close())
            harness.call(lambda: harness.pool.give_back(cgroup))


DEPTH = 3000


SPAWN = """
import os, select, signal, sys
from sockd.isolation.farm import farm_init
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
open_pidfd, killed = os.pidfd_open, []

def too_late(pid):
    if len(killed) < int(sys.argv[1]):
        killed.append(pid)
        pidfd = open_pidfd(pid)
        os.kill(pid, signal.SIGKILL)
        select.select([pidfd], [], [])
        os.close(pidfd)
        while os.path.exists(f"/proc/{pid}"):
            os.sched_yield()
    return open_pidfd(pid)

os.pidfd_open = too_late
message = {"command": ["/bin/sh", "-c", "exec sleep 60"], "filters": [], "env": {}, "reaps": False}
pidfd = farm_init.exec_zygote(message, [os.memfd_create("control")], os.open("/dev/null", os.O_RDWR))
signal.pidfd_send_signal(pidfd, signal.SIGKILL)
print(len(killed))
"""


@pytest.mark.parametrize(("kills", "is_spawned"), [(0, True), (1, True), (3, False)])
def test_a_root_zygote_that_is_killed_before_it_is_watched_is_spawned_again(kills: int, is_spawned: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SPAWN, str(kills)], capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode == 0) == is_spawned, done.stderr
    assert done.stdout.split() == ([str(kills)] if is_spawned else [])
    assert is_spawned or "3 root Zygotes ended before they could be watched" in done.stderr


SERVE = """
import socket, sys
from sockd.isolation.farm import farm_init
from sockd.linux import mounts
from sockd_zygote import protocol
mounts.enter_private_namespace()
daemon, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
daemon.send(protocol.encode_control({"op": "status_of", "id": 1, "number": 1}))
if sys.argv[1] == "answered":
    control.send(b"an answer that the daemon has not read")
daemon.close()
farm_init.serve(control)
"""


@pytest.mark.parametrize("which", ["asked", "answered"])
def test_init_ends_without_a_word_when_the_daemon_is_killed_during_a_request(which: str) -> None:
    done = subprocess.run([sys.executable, "-c", SERVE, which], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, "")
