"""User namespaces that no process is in: what they map, and that nothing of their making stays behind."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sockd.linux import mounts, syscalls, user_namespaces
from sockd.linux.kernel_release import kernel_release
from sockd.linux.mounts import owned
from sockd.linux.syscalls import MountAttr
from tests.support.ledger import Ledger

pytestmark = pytest.mark.root

SOMEBODY = 300_000_000


def owners_seen(extents: list[user_namespaces.Extent], owners: list[int]) -> list[tuple[int, int]]:
    """The uid and gid of files of these owners through a mount with this map."""
    seen = []
    with (
        owned(syscalls.new_filesystem("tmpfs", {}, MountAttr.NONE)) as tmpfs,
        owned(user_namespaces.new(extents, extents)) as ids,
    ):
        for owner in owners:
            os.mkdir(str(owner), dir_fd=tmpfs)
            os.chown(str(owner), owner, owner, dir_fd=tmpfs)
        with owned(mounts.mapped_copy(tmpfs, ids)) as mapped:
            for owner in owners:
                status = os.stat(str(owner), dir_fd=mapped)
                seen.append((status.st_uid, status.st_gid))
    return seen


@pytest.mark.skipif(kernel_release() < (6, 15), reason="copies of detached trees: Linux 6.15")
def test_a_mapped_mount_has_the_owners_that_the_map_says(ledger: Ledger) -> None:
    extents = [(0, SOMEBODY, 1), (1, 1, 1000)]
    assert owners_seen(extents, [0, 1, 1000]) == [(SOMEBODY, SOMEBODY), (1, 1), (1000, 1000)]
    assert owners_seen(extents, [1001]) == [(65534, 65534)], "what is in no extent is nobody's"
    ledger.check()


@pytest.mark.parametrize("extents", [[], [(0, 1, 0)], [(0, 1, 2), (1, 5, 1)], [(0, 1, 2), (5, 2, 1)]])
def test_a_map_that_the_kernel_refuses_leaves_nothing(ledger: Ledger, extents: list[user_namespaces.Extent]) -> None:
    children = Path("/proc/thread-self/children")  # those that have ended, too
    before = children.read_text()
    with pytest.raises(OSError) as caught:
        os.close(user_namespaces.new(extents, extents))
    assert caught.value.errno == errno.EINVAL
    assert children.read_text() == before
    ledger.check()


def test_a_namespace_that_cannot_be_opened_leaves_nothing(
    ledger: Ledger, nth_call: Callable[..., Iterator[int]]
) -> None:
    for _ in nth_call(os, "open", error=errno.EMFILE):
        try:
            os.close(user_namespaces.new([(0, SOMEBODY, 1)], [(0, SOMEBODY, 1)]))
        except OSError as error:
            assert error.errno == errno.EMFILE
    ledger.check()


SIGNALS = """
import os, signal
from sockd.linux import user_namespaces
signal.signal(signal.SIGCHLD, lambda number, frame: print("SIGCHLD"))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
os.close(user_namespaces.new([(0, 300_000_000, 1)], [(0, 300_000_000, 1)]))
print(signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2]) == {signal.SIGUSR2})
"""


def test_its_child_sends_no_signal_and_signals_are_as_before() -> None:
    """In a process of its own: the tests' loops have handlers of SIGCHLD that Python does not know."""
    assert subprocess.check_output([sys.executable, "-c", SIGNALS], text=True) == "True\n"


def test_threads_make_them_at_once() -> None:
    made: list[int] = []
    count = 20

    def make() -> None:
        for _ in range(count):
            made.append(user_namespaces.new([(0, SOMEBODY, 1)], [(0, SOMEBODY, 1)]))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({os.fstat(fd).st_ino for fd in made}) == 4 * count
    for fd in made:
        os.close(fd)
