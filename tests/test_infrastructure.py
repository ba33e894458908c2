"""The tests' own tools do what the tests believe: the ledger sees, the sweep sweeps, the detector detects, the caller calls."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from blockbuster import BlockingError
from hypothesis import settings

from benchmarks.warm import in_process_server
from sockd.linux import mounts
from sockd.linux.cgroups.tree import Hierarchies
from tests.daemon.kernel_view import wait_readable
from tests.faults.flood import NICE, flooding
from tests.support import leftovers
from tests.support.caller import Caller
from tests.support.examples import QUICK, WHOLE, examples
from tests.support.ledger import Imbalance, Ledger
from tests.support.watch import ENOUGH, ROUNDS, Watch

ROOT = Path(__file__).parent.parent
needs_root = pytest.mark.root


def reports(ledger: Ledger, kind: str) -> list[str]:
    """What the ledger has to say about one kind of thing, at once."""
    with pytest.raises(Imbalance) as caught:
        ledger.check(grace_s=0)
    return [line.strip() for line in str(caught.value).splitlines() if line.strip().startswith(kind)]


def test_an_open_fd_is_named_with_its_file(ledger: Ledger) -> None:
    with open("/etc/passwd"):
        (line,) = reports(ledger, "fd")
        assert line.endswith("-> /etc/passwd")
    ledger.check(grace_s=0)


def test_a_child_is_named_with_its_command(ledger: Ledger) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        assert reports(ledger, "process") == [f"process {child.pid} sleep 60"]
        child.kill()
    ledger.check()


@needs_root
def test_a_process_that_left_its_parent_is_still_found(ledger: Ledger) -> None:
    code = (
        "import os, sys; pid = os.fork(); pid and (print(pid), sys.exit()); os.setsid(); os.close(1); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        child.wait(10)
        assert [line.split()[1] for line in reports(ledger, "process")] == [str(pid)]
    ledger.check()


KILLED_RUN = """\
import subprocess, sys
from pathlib import Path
from tests.support.ledger import claim_group
claim_group()
for path in sys.argv[1:]:
    Path(path).mkdir()
child = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
sys.stdin.read()
"""


@needs_root
def test_what_a_killed_run_has_left_is_swept_and_nothing_of_one_that_runs() -> None:
    name = f"sockd-test-{os.getpid()}-left"
    left = [Path(base, name) for base in Hierarchies.detect().bases] + [Path("/dev/shm", name)]
    command = [sys.executable, "-c", KILLED_RUN, *map(str, left)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        pidfd = os.pidfd_open(int(run.stdout.readline()))
        try:
            leftovers.sweep()
            assert not wait_readable(pidfd, 0) and all(path.exists() for path in left)
            run.kill()
            run.wait()
            leftovers.sweep()
            assert wait_readable(pidfd, 0) and not any(path.exists() for path in left)
        finally:
            os.close(pidfd)


@needs_root
def test_a_cgroup_is_found_and_those_of_others_are_not(ledger: Ledger) -> None:
    (root,) = [
        line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in line
    ]
    directory = Path(root, f"sockd-test-{os.getpid()}")
    directory.mkdir()
    try:
        assert reports(ledger, "cgroup") == [f"cgroup {directory} (empty)"]
        os.chown(directory, 0, 0)
        ledger.check(grace_s=0)
    finally:
        directory.rmdir()


@needs_root
def test_a_mount_is_found(ledger: Ledger, tmp_path: Path) -> None:
    mounts.mount_tmpfs(str(tmp_path), size_bytes=1 << 20)
    try:
        assert [line.split(": ")[1] for line in reports(ledger, "mount")] == [f"tmpfs on {tmp_path}"]
    finally:
        mounts.umount_tree(str(tmp_path))


@needs_root
def test_mounts_of_the_tests_are_seen_by_no_one_else() -> None:
    assert os.readlink("/proc/self/ns/mnt") != os.readlink(f"/proc/{os.getppid()}/ns/mnt")


def test_shared_memory_is_found(ledger: Ledger) -> None:
    memory = Path(f"/dev/shm/sockd-test-{os.getpid()}")
    memory.touch()
    try:
        assert reports(ledger, "shared memory") == [f"shared memory {memory}"]
    finally:
        memory.unlink()


def test_a_watched_directory_must_be_as_it_was(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "before").touch()
    ledger.watch(tmp_path)
    ledger.check(grace_s=0)
    (tmp_path / "left behind").touch()
    assert reports(ledger, "directory entry") == [f"directory entry {tmp_path / 'left behind'}"]
    (tmp_path / "left behind").unlink()


@pytest.mark.parametrize(("profile", "tried"), [(WHOLE, [1, 12, 100, 600]), (QUICK, [1, 2, 20, 120])])
def test_the_quick_run_tries_a_part_of_the_examples(profile: str, tried: list[int]) -> None:
    before = settings.get_current_profile_name()
    settings.load_profile(profile)
    try:
        assert [examples(most) for most in (1, 12, 100, 600)] == tried
    finally:
        settings.load_profile(before)


def test_the_sweep_fails_each_call_once_and_ends_when_none_is_left(nth_call: Callable[..., Iterator[int]]) -> None:
    module = types.ModuleType("kernel")
    module.call = lambda: "done"  # type: ignore[attr-defined]
    outcomes: list[object] = []
    for _ in nth_call(module, "call"):
        try:
            outcomes.append([module.call() for _ in range(3)])
        except OSError as error:
            outcomes.append(str(error))
    assert len(outcomes) == 4
    assert all("injected" in str(outcome) for outcome in outcomes[:3])
    assert outcomes[3] == ["done"] * 3
    assert module.call() == "done"


@pytest.mark.anyio
async def test_a_socket_that_blocks_the_event_loop_is_an_error() -> None:
    module = types.ModuleType("sockd.blocking")
    module.__file__ = str(Path(mounts.__file__).parent / "blocking.py")
    exec(compile("def receive(sock): return sock.recv(1)", module.__file__, "exec"), module.__dict__)
    here, there = socket.socketpair()
    with here, there:
        there.send(b"x")
        with pytest.raises(BlockingError):
            module.receive(here)
        assert await asyncio.to_thread(module.receive, here) == b"x"


@contextmanager
def calling(port: int) -> Iterator[Caller]:
    caller = Caller.start(port, "anything")
    try:
        yield caller
    finally:
        caller.close()


def test_rounds_end_with_enough_calls_and_not_without() -> None:
    with in_process_server() as echo, calling(echo.port) as caller, calling(echo.port) as other:
        watch = Watch(caller, Watch.undisturbed(other, 0.0, 3))
        watch.begin(0.0)
        rounds = len([Watch.undisturbed(other, 0.0, ENOUGH // 4) for _ in watch.rounds()])
        watch.end()
        assert 1 <= rounds < ROUNDS and len(watch.ms) >= ENOUGH and watch.wrong == []
        assert 0 < min(watch.ms) < watch.p99 and watch.ratio > 0
        watch.begin(3600.0)
        assert len(list(watch.rounds())) == ROUNDS
        watch.end()
        assert watch.ms == []


def test_a_caller_calls_however_fast_orders_come() -> None:
    with in_process_server() as echo, calling(echo.port) as caller:
        watch = Watch(caller, [])
        watch.begin(0.02)
        deadline = time.monotonic() + 10
        while caller.wait_for(0) < 3:
            assert time.monotonic() < deadline
        assert caller.wait_for(2) >= 5
        watch.end()
    assert watch.wrong == [] and len(watch.ms) >= 5


def test_a_caller_tells_every_answer_that_is_not_its_event() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, calling(server.getsockname()[1]) as caller:
        watch = Watch(caller, [])
        watch.begin(0.0, 2)
        connection, _ = server.accept()
        with connection:
            assert connection.recv(4096).endswith(b"\r\n\r\n0")
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n7")
            assert connection.recv(4096).endswith(b"\r\n\r\n1")
        watch.take_result()
    assert watch.wrong[0] == "200 b'7'" and "closed the connection" in watch.wrong[1] and len(watch.ms) == 2


def test_a_caller_that_dies_is_reported() -> None:
    with in_process_server() as echo, calling(echo.port) as caller:
        watch = Watch(caller, [])
        watch.begin(0.001)
        caller.kill()
        with pytest.raises(AssertionError, match="died with status -9"):
            watch.end()
        assert not caller.alive


@needs_root
def test_a_flood_weighs_less_than_others_and_leaves_nothing_behind_a_failure(ledger: Ledger) -> None:
    def attack(port: int) -> None:
        with flooding("burst", port, "nobody", 1) as process:
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == NICE
            raise ZeroDivisionError

    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(ZeroDivisionError):
        attack(server.getsockname()[1])
    ledger.check(grace_s=0)
