"""Processes by pidfd: their namespace, their end, their memory, their number."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sockd.linux import readiness
from sockd.linux.kernel_release import kernel_release
from sockd.linux.mounts import owned
from sockd.linux.processes import pidfds

Start = Callable[[str], tuple["subprocess.Popen[bytes]", int]]
OPENS_NAMESPACES = pytest.mark.skipif(kernel_release() < (6, 11), reason="namespaces by pidfd: Linux 6.11")


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a Python process; the process and a pidfd of it."""
    with ExitStack() as stack:

        def start(code: str) -> tuple[subprocess.Popen[bytes], int]:
            child = subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdin=-1, stdout=-1)
            stack.enter_context(child)
            stack.callback(child.kill)
            pidfd = os.pidfd_open(child.pid)
            stack.callback(os.close, pidfd)
            return child, pidfd

        yield start


WAIT = "import os; os.write(1, b'.'); os.read(0, 1)"


def until_exited(pidfd: int) -> None:
    assert select.select([pidfd], [], [], 10)[0]


@OPENS_NAMESPACES
def test_the_pid_namespace_of_a_process(start: Start) -> None:
    _, pidfd = start(WAIT)
    with owned(pidfds.pid_namespace(pidfd)) as namespace:
        assert os.fstat(namespace).st_ino == os.stat("/proc/self/ns/pid").st_ino
        assert not os.get_inheritable(namespace)


@OPENS_NAMESPACES
def test_the_namespace_of_the_dead_is_gone(start: Start) -> None:
    child, pidfd = start("pass")
    child.wait()
    with pytest.raises(ProcessLookupError):
        pidfds.pid_namespace(pidfd)


def test_what_is_no_pidfd_is_refused() -> None:
    with owned(os.open("/dev/null", os.O_RDONLY)) as fd:
        with pytest.raises(OSError) as caught:
            pidfds.pid_namespace(fd)
        assert caught.value.errno == errno.ENOTTY
        assert pidfds.exit_status(fd) is None
        assert pidfds.pid(fd) == -1


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.abort()", -6),
    ],
)
def test_the_exit_status_outlasts_the_reaping(start: Start, code: str, status: int) -> None:
    child, pidfd = start(code)
    child.wait()
    reported = pidfds.exit_status(pidfd)
    if reported is None and kernel_release() < (6, 15):
        pytest.skip("exit statuses by pidfd: Linux 6.15")
    assert reported is not None and os.waitstatus_to_exitcode(reported) == status


def test_there_is_no_exit_status_before_the_end(start: Start) -> None:
    child, pidfd = start(WAIT)
    assert pidfds.exit_status(pidfd) is None
    child.kill()
    until_exited(pidfd)
    assert child.poll() == -9


def test_the_number_of_a_process(start: Start) -> None:
    child, pidfd = start(WAIT)
    assert pidfds.pid(pidfd) == child.pid
    child.kill()
    child.wait()
    assert pidfds.pid(pidfd) == -1


def test_memory_that_is_a_processs_own(start: Start) -> None:
    child, pidfd = start(f"kept = bytes(1) * (20 << 20)\n{WAIT}")
    assert child.stdout is not None
    assert child.stdout.read(1) == b"."
    assert 20 << 20 <= pidfds.memory(pidfd).private_bytes < 60 << 20
    child.kill()
    child.wait()
    with pytest.raises(OSError):
        pidfds.memory(pidfd)


def exited(code: int) -> int:
    return code << 8


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (None, "Runtime exited without providing a reason"),
        (exited(0), "Runtime exited without providing a reason"),
        (exited(1), "Runtime exited with error: exit status 1"),
        (exited(128), "Runtime exited with error: exit status 128"),
        (exited(143), "Runtime exited with error: signal: terminated"),
        (exited(128 + signal.NSIG), f"Runtime exited with error: exit status {128 + signal.NSIG}"),
        (exited(255), "Runtime exited with error: exit status 255"),
        (signal.SIGKILL, "Runtime exited with error: signal: killed"),
        (signal.SIGSEGV, "Runtime exited with error: signal: segmentation fault"),
        (signal.SIGSEGV | 0x80, "Runtime exited with error: signal: segmentation fault"),
        (signal.SIGABRT, "Runtime exited with error: signal: aborted"),
        (signal.SIGTERM, "Runtime exited with error: signal: terminated"),
        (signal.SIGXCPU, "Runtime exited with error: signal: cpu time limit exceeded"),
    ],
)
def test_an_end_in_awss_words(status: int | None, words: str) -> None:
    assert pidfds.describe_status(status) == words


def test_every_signal_has_a_name() -> None:
    for number in range(1, signal.NSIG):
        assert pidfds.signal_name(number)


def test_this_process_can_be_seen() -> None:
    with owned(os.pidfd_open(os.getpid())) as pidfd:
        assert pidfds.pid(pidfd) == os.getpid()
        assert pidfds.memory(pidfd).private_bytes > 0
        assert Path(f"/proc/{pidfds.pid(pidfd)}").exists()


@pytest.mark.parametrize("kernel", ["this", "before 6.13"])
def test_the_parent_of_a_process(start: Start, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernel != "this":
        monkeypatch.setattr(pidfds, "_PIDFD_GET_INFO", 0)  # ENOTTY, as there
    child, pidfd = start(WAIT)
    with owned(os.pidfd_open(os.getpid())) as ours, owned(os.open("/dev/null", os.O_RDONLY)) as null:
        assert pidfds.pid_and_parent(pidfd) == (child.pid, os.getpid())
        assert pidfds.pid_and_parent(ours) == (os.getpid(), os.getppid())
        assert pidfds.pid_and_parent(null) == pidfds.pid_and_parent(-1) == (-1, -1)
    child.kill()
    child.wait()
    assert pidfds.pid_and_parent(pidfd) == (-1, -1)


@pytest.mark.anyio
@pytest.mark.parametrize("turns", [0, 3])
async def test_the_owner_of_a_pidfd_may_close_it_while_its_end_is_awaited(start: Start, turns: int) -> None:
    child, pidfd = start(WAIT)
    borrowed = os.dup(pidfd)
    waiting = asyncio.ensure_future(pidfds.wait_exited(borrowed, 10))
    for _ in range(1 + turns):
        await asyncio.sleep(0)
    os.close(borrowed)
    with owned(os.eventfd(1)) as next_owner:
        assert next_owner == borrowed  # the same number
        async with asyncio.timeout(10):
            await readiness.readable(next_owner)
    assert not waiting.done()
    child.kill()
    await waiting
    until_exited(pidfd)


@pytest.mark.anyio
async def test_without_a_descriptor_to_spare_an_end_is_not_waited_for(start: Start) -> None:
    _, pidfd = start(WAIT)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        await pidfds.wait_exited(pidfd, 10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.anyio
async def test_the_status_is_waited_for_until_the_parent_has_reaped_the_process(start: Start) -> None:
    child, pidfd = start("raise SystemExit(6)")
    until_exited(pidfd)
    waiting = asyncio.ensure_future(pidfds.wait_status(pidfd, 10))
    await pidfds.wait_exited(pidfd, 10)
    if kernel_release() >= (6, 15):
        await asyncio.sleep(0)
        assert not waiting.done() and pidfds.exit_status(pidfd) is None
    child.wait()
    await waiting
    assert pidfds.exit_status(pidfd) == (6 << 8 if kernel_release() >= (6, 15) else None)


@pytest.mark.anyio
async def test_the_wait_for_a_status_has_a_deadline(start: Start) -> None:
    child, pidfd = start(WAIT)
    await pidfds.wait_status(pidfd, 0.01)
    assert child.poll() is None


@pytest.mark.anyio
async def test_the_wait_for_an_end_has_a_deadline(start: Start) -> None:
    child, pidfd = start(WAIT)
    await pidfds.wait_exited(pidfd, 0.01)
    assert child.poll() is None


@pytest.mark.parametrize(
    ("status", "has_exited"),
    [(0, True), (1 << 8, True), (127 << 8, True), (signal.SIGKILL, False), ((128 + signal.SIGKILL) << 8, False)],
)
def test_a_process_that_was_killed_has_not_exited_by_itself(status: int, has_exited: bool) -> None:
    assert pidfds.has_exited(status) == has_exited
