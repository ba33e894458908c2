"""Detached and attached roots: which is chosen, what is in them, and that nothing of their making stays behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sockd.base.errors import BadConfig
from sockd.isolation.roots.assembly import Attached
from sockd.isolation.roots.program import Program
from sockd.isolation.roots.root import Root
from sockd.linux import mounts, syscalls
from sockd.linux.mounts import owned
from sockd.linux.ways import Ways
from tests.support.harness import Harness
from tests.support.ledger import Ledger

both = pytest.mark.parametrize("whole_harness", ["detached", "attached"], indirect=True)
attached = pytest.mark.parametrize("whole_harness", ["attached"], indirect=True)
pytestmark = pytest.mark.root


def mount_table() -> str:
    return Path("/proc/self/mountinfo").read_text()


def make_root(harness: Harness, source: str = "def handler(event): return event\n") -> Root:
    program = harness.program(source)
    return harness.assembly.create(program.limits, program)


@both
@pytest.mark.parametrize("call", ["open_tree", "move_mount", "new_filesystem", "mount_setattr"])
def test_a_root_that_cannot_be_made_leaves_nothing(
    harness: Harness, ledger: Ledger, nth_call: Callable[..., Iterator[int]], call: str
) -> None:
    table = mount_table()
    for _ in nth_call(syscalls, call):
        with suppress(OSError):
            make_root(harness).close()
        harness.settle()  # the program has a mount of its own
        ledger.check()
        assert mount_table() == table


@both
def test_a_root_is_in_no_mount_table(harness: Harness) -> None:
    table = mount_table()
    running = harness.start("def handler(event): return event\n")
    assert mount_table() == table
    assert running.answer(1) == 1
    assert mount_table() == table


@both
def test_what_follows_is_made_as_if_nothing_had_failed(harness: Harness) -> None:
    def make_for(program: Program) -> None:
        root = harness.assembly.create(program.limits, program)
        try:
            root.mount_code(program)
        finally:
            root.close()

    missing = harness.program("def handler(event): return event\n")
    os.rename(str(missing.code), f"{missing.code}.away")
    with pytest.raises(OSError, match="open_tree") as caught:
        make_for(missing)
    assert caught.value.errno == errno.ENOENT
    assert harness.answer("def handler(event): return event\n", 1) == 1


@both
def test_a_root_is_completed_while_a_process_is_in_it(harness: Harness) -> None:
    root = make_root(harness, "here = 'the code'\n")
    try:
        at = f"/proc/self/fd/{root.fd}"
        assert os.listdir(f"{at}/var/task") == os.listdir(f"{at}/proc") == []
        root.mount_code(harness.program("here = 'the code'\n"))
        with owned(os.pidfd_open(os.getpid())) as pidfd:
            harness.run(root.mount_proc(pidfd))
        assert "the code" in Path(f"{at}/var/task/f.py").read_text()
        assert Path(f"{at}/proc/{os.getpid()}/stat").exists()
        assert os.statvfs(f"{at}/tmp").f_files == harness.limits().tmp_inodes
        root.replace_tmp(harness.limits(tmp_inodes=77))
        assert os.statvfs(f"{at}/tmp").f_files == 77
    finally:
        root.close()


@both
def test_nothing_is_above_a_root(harness: Harness) -> None:
    root = make_root(harness)
    try:
        at = f"/proc/self/fd/{root.fd}"
        assert os.path.samefile(f"{at}/../..", at)
        assert {"usr", "var", "packages"} <= set(os.listdir(f"{at}/../.."))
        assert "work" not in os.listdir(f"{at}/..")
    finally:
        root.close()


@both
def test_a_canary_needs_no_code(harness: Harness) -> None:
    limits = harness.limits()
    spare = harness.run(harness.fork(limits))
    assert spare.lifecycle.state.name == "PRIMED"
    harness.call(spare.destroy)


@both
@pytest.mark.parametrize("spare", [False, True])
def test_a_handler_finds_itself_in_proc(harness: Harness, spare: bool) -> None:
    def look(event: Any) -> Any:
        import multiprocessing
        import os
        import subprocess
        import threading

        def numbers() -> list[int]:
            return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())

        def read(path: str) -> str:
            with open(path) as file:
                return file.read()

        waiting = threading.Event()
        thread = threading.Thread(target=waiting.wait)
        thread.start()
        threads = len(os.listdir("/proc/self/task"))
        waiting.set()
        thread.join()
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
            both = numbers() == [1, child.pid]
            its_parent = read(f"/proc/{child.pid}/stat").rpartition(")")[2].split()[1]
        with multiprocessing.get_context("fork").Pool(1) as pool:
            in_pool = pool.apply(os.getpid)
        return {
            "pid": os.getpid(),
            "self": os.readlink("/proc/self"),
            "thread-self": os.readlink("/proc/thread-self"),
            "name": read("/proc/1/status").splitlines()[0].split()[1] == read("/proc/self/comm").strip(),
            "numbers": numbers()[0],
            "threads": threads,
            "child": [both, its_parent],
            "pool": in_pool > 1,
            "machine": all(read(f"/proc/{name}") for name in ("meminfo", "cpuinfo", "stat", "uptime")),
        }

    assert harness.start(look, spare=spare).answer() == {
        "pid": 1,
        "self": "1",
        "thread-self": "1/task/1",
        "name": True,
        "numbers": 1,
        "threads": 2,
        "child": [True, "1"],
        "pool": True,
        "machine": True,
    }


@attached
def test_the_daemons_thread_is_where_it_was(harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = harness.assembly
    assert isinstance(made, Attached)
    before = os.readlink("/proc/thread-self/ns/mnt"), os.getcwd(), os.listdir("/")
    with pytest.raises(OSError, match="move_mount"):
        made._namespaces.attach(mounts.new_tmp(size_bytes=1 << 20, inodes=10), made._template, "/none")
    make_root(harness).close()
    assert (os.readlink("/proc/thread-self/ns/mnt"), os.getcwd(), os.listdir("/")) == before


def test_a_way_that_cannot_be_had_is_refused_and_the_other_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(mount_fd: int, directory_fd: int, path: str) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(syscalls, "move_mount", refuse)
    found = Ways.find().roots
    assert found.name == "attached" and found.reason.endswith("Invalid argument")
    with pytest.raises(BadConfig, match=r'sandbox.roots = "detached" .* Invalid argument'):
        Ways.find(roots="detached")
