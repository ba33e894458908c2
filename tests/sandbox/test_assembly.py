"""Roots made late and early: which is chosen, what is in them, and that nothing of their making stays behind."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sockd.images import assembly
from sockd.images.program import Program
from sockd.images.root import Root
from sockd.kernel import pidfds, syscalls
from sockd.kernel.mounts import owned
from sockd.plain.errors import BadConfig
from tests.support.house import House
from tests.support.ledger import Ledger

both = pytest.mark.parametrize("whole_house", ["late", "early"], indirect=True)
early = pytest.mark.parametrize("whole_house", ["early"], indirect=True)
pytestmark = pytest.mark.root


def mount_table() -> str:
    return Path("/proc/self/mountinfo").read_text()


def make_root(house: House, source: str = "def handler(event): return event\n") -> Root:
    program = house.program(source)
    return house.assembly.create(program.limits, program)


@both
@pytest.mark.parametrize("call", ["open_tree", "move_mount", "new_filesystem", "mount_setattr"])
def test_a_root_that_cannot_be_made_leaves_nothing(
    house: House, ledger: Ledger, nth_call: Callable[..., Iterator[int]], call: str
) -> None:
    table = mount_table()
    for _ in nth_call(syscalls, call):
        with suppress(OSError):
            make_root(house).close()
        house.settle()  # the program has a mount of its own
        ledger.check()
        assert mount_table() == table


@both
def test_a_root_is_in_no_mount_table(house: House) -> None:
    table = mount_table()
    running = house.start("def handler(event): return event\n")
    assert mount_table() == table
    assert running.answer(1) == 1
    assert mount_table() == table


@both
def test_what_follows_is_made_as_if_nothing_had_failed(house: House) -> None:
    def make_for(program: Program) -> None:
        root = house.assembly.create(program.limits, program)
        with owned(root.fd):
            root.mount_code(program)

    missing = house.program("def handler(event): return event\n")
    os.rename(str(missing.code), f"{missing.code}.away")
    with pytest.raises(OSError, match="open_tree") as caught:
        make_for(missing)
    assert caught.value.errno == errno.ENOENT
    assert house.answer("def handler(event): return event\n", 1) == 1


@early
def test_an_early_root_is_complete_before_there_is_a_process(house: House) -> None:
    root = make_root(house, "here = 'the code'\n")
    with owned(root.fd):
        assert "the code" in Path(f"/proc/self/fd/{root.fd}/var/task/f.py").read_text()
        assert Path(f"/proc/self/fd/{root.fd}/proc/meminfo").read_text()
        assert os.statvfs(f"/proc/self/fd/{root.fd}/tmp").f_files == house.limits().tmp_inodes


@early
def test_a_canary_needs_no_code(house: House) -> None:
    limits = house.limits()
    spare = house.run(house.fork(limits))
    assert spare.state.name == "PRIMED"
    house.call(spare.destroy)


@early
def test_a_handler_reads_of_itself_and_of_the_machine_in_the_farms_proc(house: House) -> None:
    def read(event: Any) -> Any:
        import os
        import threading

        names = ("self/status", "thread-self/comm", "self/maps", "self/fd", "meminfo", "cpuinfo", "stat", "uptime")
        sizes = []
        for name in names:
            if os.path.isdir(f"/proc/{name}"):
                sizes.append(len(os.listdir(f"/proc/{name}")))
            else:
                with open(f"/proc/{name}") as file:
                    sizes.append(len(file.read()))
        waiting = threading.Event()
        thread = threading.Thread(target=waiting.wait)
        thread.start()
        threads = len(os.listdir("/proc/self/task"))
        waiting.set()
        thread.join()
        return sizes, threads, os.getpid(), os.path.exists("/proc/1")

    sizes, threads, pid, first_is_there = house.answer(read)
    assert all(sizes)
    assert (threads, pid, first_is_there) == (2, 1, False)


@early
def test_a_handler_sees_its_children_by_the_farms_numbers(house: House) -> None:
    def look(event: Any) -> Any:
        import os
        import subprocess

        def seen() -> list[int]:
            return [int(name) for name in os.listdir("/proc") if name.isdigit()]

        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
            return int(os.readlink("/proc/self")), seen(), child.pid

    own, seen, child = house.answer(look)
    assert len(seen) == 2 and own in seen
    assert child not in seen


def test_a_kernel_that_cannot_make_roots_late_gets_early_ones(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pidfd: int) -> int:
        raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")

    monkeypatch.setattr(pidfds, "pid_namespace", refuse)
    procfs = syscalls.open_tree(syscalls.AT_FDCWD, "/proc", recursive=False)
    with owned(procfs):
        made = assembly.open_assembly("auto", house.base, procfs, house.directory / "other-roots")
        try:
            assert (made.kind, made.spares) == ("early", False)
            assert made.reason == assembly.why_not_late() != ""
        finally:
            made.close()
        with pytest.raises(BadConfig, match=re.escape(made.reason)):
            assembly.open_assembly("late", house.base, procfs, house.directory / "other-roots")
