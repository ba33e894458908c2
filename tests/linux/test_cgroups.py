"""Cgroups on the real kernel, in each layout that this host can show: as it is, and v1 alone."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from sockd.base.errors import SandboxFailed
from sockd.linux.cgroups.controllers import MemoryV2
from sockd.linux.cgroups.files import CgroupFiles
from sockd.linux.cgroups.tree import Cgroup, CgroupTree, Hierarchies
from sockd.linux.latency import favordynmods
from tests.support.emulated import not_in_uml

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

MB = 1 << 20
Spawn = Callable[..., "subprocess.Popen[bytes]"]


def _v1_alone(found: Hierarchies) -> Hierarchies:
    return dataclasses.replace(found, unified=None)


@pytest.fixture(params=["as it is", "v1 alone"])
def hierarchies(request: pytest.FixtureRequest) -> Hierarchies:
    found = Hierarchies.detect()
    if request.param == "as it is":
        return found
    if found.kind == "v2" or _v1_alone(found).missing:
        pytest.skip("this host has no complete v1")
    return _v1_alone(found)


@pytest.fixture
def tree(hierarchies: Hierarchies) -> Iterator[CgroupTree]:
    tree = CgroupTree.create(hierarchies, f"sockd-test-{uuid.uuid4().hex[:8]}")
    try:
        yield tree
    finally:
        tree.destroy_all(5)
        assert not any(os.path.exists(path) for path in tree.directories)


@pytest.fixture
def cgroup(tree: CgroupTree) -> Iterator[Cgroup]:
    cgroup = tree.cgroup("sandbox-1")
    with contextlib.closing(cgroup):
        yield cgroup


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Start a Python process that joins a cgroup first, runs `code`, says so, and waits for its stdin to end."""
    with contextlib.ExitStack() as stack:

        def start(cgroup: Cgroup, code: str = "pass", *, wait: bool = True) -> subprocess.Popen[bytes]:
            fds = cgroup.procs_fds
            joined = f"import os, sys\nfor fd in {fds}: os.write(fd, b'0')\n{code}\nos.write(1, b'.'); sys.stdin.read()"
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", joined], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=fds
            )
            stack.enter_context(child)
            stack.callback(child.kill)
            if wait:
                assert child.stdout is not None
                assert child.stdout.read(1) == b"."
            return child

        yield start


def _die(cgroup: Cgroup) -> None:
    async def die() -> None:
        cgroup.kill_nowait()
        await cgroup.wait_empty(5)

    uvloop.run(die())


def test_a_process_that_writes_zero_is_in_every_hierarchy(cgroup: Cgroup, spawn: Spawn) -> None:
    assert not cgroup.populated()
    child = spawn(cgroup)
    assert cgroup.populated()
    assert cgroup.pids() == [child.pid]
    lines = Path(f"/proc/{child.pid}/cgroup").read_text().splitlines()
    assert sum(line.endswith("/sandbox-1") for line in lines) == len(cgroup.procs_fds)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_kill_spares_no_one_and_ends_when_the_last_has_gone(
    cgroup: Cgroup, spawn: Spawn, run: Callable[..., None]
) -> None:
    code = (
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nfor _ in range(3): os.fork() or sys.stdin.read()"
    )
    child = spawn(cgroup, code)
    assert len(cgroup.pids()) == 4

    async def kill() -> None:
        cgroup.kill_nowait()
        await cgroup.wait_empty(5)

    run(kill())
    assert cgroup.pids() == []
    assert child.wait() == -9
    cgroup.remove()


def test_the_frozen_can_be_killed(cgroup: Cgroup, spawn: Spawn) -> None:
    child = spawn(cgroup)
    cgroup.freeze_nowait()
    _die(cgroup)
    assert child.wait() == -9


def test_the_frozen_do_nothing_until_thawed(cgroup: Cgroup, spawn: Spawn) -> None:
    child = spawn(cgroup)
    cgroup.freeze_nowait()
    assert child.stdin is not None
    child.stdin.close()  # What it waits for has happened, and it must not notice.
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.1)
    cgroup.thaw_nowait()
    assert child.wait(5) == 0


def test_wait_empty_notices_who_leaves_unasked(cgroup: Cgroup, spawn: Spawn) -> None:
    child = spawn(cgroup)

    async def leave() -> None:
        waiting = asyncio.create_task(cgroup.wait_empty(5))
        await asyncio.sleep(0)
        assert child.stdin is not None
        child.stdin.close()
        await waiting

    uvloop.run(leave())


def test_wait_empty_names_who_is_left_at_the_deadline(cgroup: Cgroup, spawn: Spawn) -> None:
    child = spawn(cgroup)
    with pytest.raises(TimeoutError, match=rf"by \[{child.pid}\]: ") as caught:
        uvloop.run(cgroup.wait_empty(0.01))
    words = str(caught.value)
    assert words.count(f"cgroup.procs: {child.pid}") == len(cgroup.procs_fds)  # each hierarchy
    threads = "cgroup.events: populated 1 frozen 0" if cgroup.events_fd >= 0 else "tasks"
    assert threads in words


def test_over_the_memory_limit_is_death_and_counted(cgroup: Cgroup, spawn: Spawn) -> None:
    cgroup.limits.set_memory(32 * MB)
    child = spawn(cgroup, "x = bytearray(64 << 20)", wait=False)
    assert child.wait(10) == -9
    assert cgroup.oom_kills() >= 1
    assert 31 * MB < cgroup.peak_bytes() <= 32 * MB


def test_a_limit_can_be_raised_and_lowered(cgroup: Cgroup) -> None:
    for limit in (64 * MB, 256 * MB, 32 * MB, None, 128 * MB):
        cgroup.limits.set_memory(limit)


def test_limits_are_what_was_said_last_however_it_was_said(cgroup: Cgroup, spawn: Spawn) -> None:
    cgroup.limits.set(32 * MB, 1, None)
    cgroup.limits.set_memory(None)
    cgroup.limits.set(32 * MB, 1, None)
    assert spawn(cgroup, "x = bytearray(64 << 20)", wait=False).wait(10) == -9
    _die(cgroup)
    cgroup.limits.set(None, 1, None)
    spawn(cgroup, "try: os.fork()\nexcept BlockingIOError: pass\nelse: os._exit(1)")


def test_a_limit_that_stays_is_not_written(tree: CgroupTree, cgroup: Cgroup) -> None:
    (pids,) = (path for top in tree.directories if (path := Path(top, cgroup.name, "pids.max")).exists())
    cgroup.limits.set(32 * MB, 5, 0.5)
    pids.write_text("7")
    cgroup.limits.set(64 * MB, 5, 0.5)
    assert pids.read_text() == "7\n"
    cgroup.limits.set(64 * MB, 6, 0.5)
    assert pids.read_text() == "6\n"


def test_more_tasks_than_allowed_cannot_be_forked(cgroup: Cgroup, spawn: Spawn) -> None:
    cgroup.limits.set_pids(1)
    spawn(cgroup, "try: os.fork()\nexcept BlockingIOError: pass\nelse: os._exit(1)")


def test_cpu_time_beyond_the_limit_is_not_given(cgroup: Cgroup, spawn: Spawn) -> None:
    cgroup.limits.set_cpus(0.1)
    # In 300 ms of time there are at most four periods of 10 ms of it for us.
    code = (
        "import time\nbegan = time.process_time(); end = time.monotonic() + 0.3\nwhile time.monotonic() < end: pass\n"
    )
    spawn(cgroup, code + "if time.process_time() - began > 0.15: os._exit(1)")


def test_settled_it_holds_no_more_fds_than_it_takes_to_freeze_and_kill(cgroup: Cgroup, spawn: Spawn) -> None:
    spawn(cgroup)
    before = len(os.listdir("/proc/self/fd"))
    prepared = cgroup.procs_fds
    cgroup.settle()
    assert len(os.listdir("/proc/self/fd")) < before - len(prepared)
    cgroup.limits.set_memory(64 * MB)  # Slower, but it works.
    _die(cgroup)


def test_scrubbed_and_limited_anew_it_is_as_good_as_new(cgroup: Cgroup, spawn: Spawn) -> None:
    cgroup.limits.set(32 * MB, 2, 0.05)
    spawn(cgroup, "x = bytearray(64 << 20)", wait=False).wait(100)  # with a twentieth of a processor
    _die(cgroup)
    assert cgroup.scrub() is cgroup.reusable
    assert cgroup.oom_kills() == 0
    assert cgroup.memory_bytes() <= MB
    if cgroup.reusable:
        assert cgroup.peak_bytes() <= MB
    cgroup.limits.set(None, None, None)
    spawn(cgroup, "x = bytearray(64 << 20)\nfor _ in range(3): os.fork() or sys.stdin.read()")
    assert cgroup.oom_kills() == 0


def test_one_that_others_files_are_charged_to_is_not_reused(tmp_path: Path, cgroup: Cgroup, spawn: Spawn) -> None:
    path = Path("/var/tmp", f"sockd-test-{uuid.uuid4().hex}")  # On a disk, unlike perhaps /tmp.
    try:
        spawn(cgroup, f"f = open({str(path)!r}, 'wb'); f.write(bytes(8 << 20)); f.flush(); os.fsync(f)")
        _die(cgroup)
        assert cgroup.scrub() is False
    finally:
        path.unlink()
    cgroup.remove()


def test_one_with_processes_is_not_removed(cgroup: Cgroup, spawn: Spawn) -> None:
    spawn(cgroup)
    with pytest.raises(OSError, match="busy"):
        cgroup.remove()


def test_one_that_is_busy_in_v1_alone_can_still_be_killed_watched_and_removed_later(
    hierarchies: Hierarchies, cgroup: Cgroup, spawn: Spawn
) -> None:
    if hierarchies.unified is None or len(hierarchies.bases) == 1:
        pytest.skip("this layout has no v2 beside v1")
    process = spawn(cgroup)
    Path(hierarchies.unified, "cgroup.procs").write_text(str(process.pid))
    with pytest.raises(OSError, match="busy"):
        cgroup.remove()
    cgroup.kill_nowait()
    assert not cgroup.populated()
    process.kill()
    process.wait()
    cgroup.remove()


def test_a_leaf_that_cannot_be_made_leaves_nothing(hierarchies: Hierarchies, tree: CgroupTree) -> None:
    last = Path(hierarchies.bases[-1], tree.name, "sandbox-1")
    last.mkdir()
    others = [Path(base, tree.name, "sandbox-1") for base in hierarchies.bases[:-1]]
    fds = os.listdir("/proc/self/fd")
    with pytest.raises(FileExistsError):
        tree.cgroup("sandbox-1")
    assert not any(path.exists() for path in others)
    assert len(os.listdir("/proc/self/fd")) == len(fds)


def test_what_a_dead_daemon_left_is_killed_and_removed(tree: CgroupTree, spawn: Spawn) -> None:
    children = []
    for name in ("zygote-1", "sandbox-1"):
        with contextlib.closing(tree.cgroup(name)) as cgroup:
            children.append(spawn(cgroup))
            cgroup.freeze_nowait()
    CgroupTree(tree.hierarchies, tree.name).destroy_all(5)
    assert [child.wait() for child in children] == [-9, -9]
    assert not any(os.path.exists(path) for path in tree.directories)


def test_who_died_half_way_through_joining_is_found(tree: CgroupTree, spawn: Spawn) -> None:
    if tree.hierarchies.kind == "v2":
        pytest.skip("with one hierarchy there is no half-way")
    with contextlib.closing(tree.cgroup("sandbox-1")) as cgroup:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        os.write(cgroup.procs_fds[-1], str(child.pid).encode())
        tree.destroy_all(5)
        assert child.wait() == -9
        child.communicate()


def test_who_joins_when_all_were_killed_is_killed_too(
    tree: CgroupTree, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    children: list[subprocess.Popen[bytes]] = []
    with contextlib.closing(tree.cgroup("sandbox-1")) as cgroup:

        def remove(self: CgroupTree, original: Callable[[CgroupTree], None] = CgroupTree._remove) -> None:
            if not children:
                children.append(spawn(cgroup))
            original(self)

        monkeypatch.setattr(CgroupTree, "_remove", remove)
        tree.destroy_all(30)
    assert [child.wait() for child in children] == [-9]
    assert not any(os.path.exists(path) for path in tree.directories)


def test_destroying_what_is_not_there_is_nothing(hierarchies: Hierarchies) -> None:
    CgroupTree(hierarchies, f"sockd-test-{uuid.uuid4().hex[:8]}").destroy_all(1)


def test_v2_is_not_asked_to_end_a_cgroup_for_one_process_at_its_limit(tmp_path: Path) -> None:
    (tmp_path / "memory.oom.group").write_text(
        "0"
    )  # as the kernel makes it; what follows from it is in sandbox/test_limits.py
    MemoryV2(CgroupFiles(str(tmp_path)))
    assert (tmp_path / "memory.oom.group").read_text() == "0"


def test_a_host_without_controllers_is_refused() -> None:
    with pytest.raises(SandboxFailed, match="memory, cpu, pids, freezer"):
        CgroupTree.create(Hierarchies(None, None, None, None, None), "sockd-test-none")


@not_in_uml("has no times that mean anything")
@pytest.mark.alone
def test_after_favordynmods_a_move_waits_for_no_one() -> None:
    hierarchies = Hierarchies.detect()
    if favordynmods.enabled_needed(hierarchies):
        favordynmods.enable()
    assert favordynmods.cold_move_s(hierarchies) < favordynmods.SLOW_MOVE_S
    mounts = Path("/proc/self/mountinfo").read_text()
    assert "sockd_dynmods" not in mounts
