"""The procfs of another pid namespace: the same on both ways, and nothing of their making stays behind."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sockd.linux import procfs, syscalls
from sockd.linux.mounts import owned
from sockd.linux.processes import pidfds
from sockd.linux.procfs import ByChild, ByNamespace, Procfs
from sockd.linux.readiness import is_readable
from tests.support.ledger import Ledger

pytestmark = pytest.mark.root

DEADLINE_S = 20
NODEV = 4
"""ST_NODEV, which the os module does not name."""
INNER = """
import ctypes, os
ctypes.CDLL(None).unshare(0x20000000)
child = os.fork()
if child == 0:
    os.write(1, b'.'); os.read(0, 1)
    os._exit(0)
os.waitpid(child, 0)
"""


@contextmanager
def inner_process() -> Iterator[int]:
    """The pidfd of the first process of a pid namespace."""
    with ExitStack() as stack:
        child = stack.enter_context(subprocess.Popen([sys.executable, "-I", "-S", "-c", INNER], stdin=-1, stdout=-1))
        assert child.stdout is not None and child.stdin is not None
        stack.callback(child.stdin.close)
        assert child.stdout.read(1) == b"."
        (inner,) = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        yield stack.enter_context(owned(os.pidfd_open(int(inner))))


@pytest.fixture(params=[ByNamespace, ByChild])
def way(request: pytest.FixtureRequest) -> Iterator[Procfs]:
    if request.param is ByNamespace and (reason := procfs.why_not_by_namespace()):
        pytest.skip(f"this kernel cannot: {reason}")
    made = request.param()
    try:
        yield made
    finally:
        made.close()


def test_it_shows_the_processes_of_the_namespace_alone(way: Procfs) -> None:
    with inner_process() as pidfd, owned(way.new(pidfd)) as mount:
        numbers = [name for name in os.listdir(f"/proc/self/fd/{mount}") if name.isdigit()]
        assert numbers == ["1"]
        flags = os.fstatvfs(mount).f_flag
        assert flags & os.ST_NOSUID and flags & NODEV and flags & os.ST_NOEXEC


def test_it_can_hide_the_processes_of_others(way: Procfs) -> None:
    probe = "import os, sys; os.setgroups([]); os.setresgid(*[9999] * 3); os.setresuid(*[9999] * 3)\n"
    probe += "print([name for name in os.listdir(sys.argv[1]) if name.isdigit()])"
    with inner_process() as pidfd:
        for only_own, seen in ((False, "['1']"), (True, "[]")):
            with owned(way.new(pidfd, only_own=only_own)) as mount:
                command = [sys.executable, "-I", "-c", probe, f"/proc/self/fd/{mount}"]
                reported = subprocess.run(command, pass_fds=[mount], capture_output=True, text=True, check=True)
                assert reported.stdout.strip() == seen


def test_nothing_of_its_making_stays_behind(way: Procfs) -> None:
    ledger = Ledger()
    children = Path("/proc/thread-self/children")
    before = children.read_text(), os.readlink("/proc/self/ns/pid_for_children")
    with inner_process() as pidfd:
        for _ in range(20):
            os.close(way.new(pidfd))
    assert (children.read_text(), os.readlink("/proc/self/ns/pid_for_children")) == before
    ledger.check()


def test_a_process_that_is_gone_has_none(way: Procfs) -> None:
    ledger = Ledger()
    with inner_process() as pidfd:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for _ in range(50):  # while its namespace ends, and after that
            try:
                os.close(way.new(pidfd))
            except ProcessLookupError:
                continue
        assert is_readable(pidfd, DEADLINE_S)  # it has ended: on a busy host 50 calls are too few to wait for that
        with pytest.raises(ProcessLookupError):
            way.new(pidfd)
    ledger.check()


def test_a_call_that_fails_leaves_nothing(way: Procfs, nth_call: Callable[..., Iterator[int]]) -> None:
    ledger = Ledger()
    with inner_process() as pidfd:
        for _ in nth_call(syscalls, "_call"):
            try:
                os.close(way.new(pidfd))
            except OSError:
                continue
    ledger.check()


def test_a_table_without_room_for_another_descriptor_is_reported(ledger: Ledger) -> None:
    way = ByChild()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with inner_process() as pidfd:
            resource.setrlimit(resource.RLIMIT_NOFILE, (way._theirs.fileno() + 1, hard))
            with pytest.raises((OSError, ValueError)):
                way.new(pidfd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            os.close(way.new(pidfd))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        way.close()
    ledger.check()


def test_a_process_made_meanwhile_is_in_our_own_namespace() -> None:
    way = ByChild()
    try:
        with inner_process() as pidfd:
            os.close(way.new(pidfd))
            with subprocess.Popen(["true"]) as child, owned(os.pidfd_open(child.pid)) as ours:
                assert pidfds.pid(ours) == child.pid
    finally:
        way.close()
