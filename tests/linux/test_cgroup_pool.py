"""The pool of cgroups, on the real kernel."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from sockd.client.cli.doctor.cgroup_limits import read_limits
from sockd.linux.cgroups.cgroup_pool import CgroupPool
from sockd.linux.cgroups.tree import Cgroup, CgroupTree, Hierarchies

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

MB = 1 << 20


@pytest.fixture
def tree() -> Iterator[CgroupTree]:
    tree = CgroupTree.create(Hierarchies.detect(), f"sockd-test-{uuid.uuid4().hex[:8]}")
    try:
        yield tree
    finally:
        tree.destroy_all(5)


def on_uvloop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: object) -> None:
        uvloop.run(test(**fixtures))  # type: ignore[arg-type]

    return run


def leaves(tree: CgroupTree) -> set[str]:
    """The leaves that exist, which have to be the same in every hierarchy."""
    found = [{entry.name for entry in Path(top).iterdir() if entry.is_dir()} for top in tree.directories]
    assert all(names == found[0] for names in found)
    return found[0]


async def until_recycled(pool: CgroupPool) -> None:
    """Wait for the pool's own background work: it has no event for outsiders, but it is all tasks."""
    while pool.snapshot().recycling:
        await asyncio.wait([task for task in asyncio.all_tasks() if task.get_name().startswith("recycle")])
        await asyncio.sleep(0)


def inhabit(cgroup: Cgroup) -> subprocess.Popen[bytes]:
    fds = cgroup.procs_fds
    code = f"import os, sys\nfor fd in {fds}: os.write(fd, b'0')\nos.write(1, b'.'); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=fds
    )
    assert child.stdout is not None
    assert child.stdout.read(1) == b"."
    return child


@on_uvloop
async def test_it_starts_full_and_leaves_nothing(tree: CgroupTree) -> None:
    fds = len(os.listdir("/proc/self/fd"))
    pool = CgroupPool(tree, 4)
    await pool.start()
    assert pool.snapshot().idle == 4
    assert leaves(tree) == {f"sandbox-{number}" for number in (1, 2, 3, 4)}
    await pool.aclose()
    assert leaves(tree) == set()
    assert len(os.listdir("/proc/self/fd")) == fds


@on_uvloop
async def test_when_empty_it_makes_one_at_once(tree: CgroupTree) -> None:
    pool = CgroupPool(tree, 1)
    await pool.start()
    taken = [pool.take() for _ in range(3)]
    assert len({cgroup.name for cgroup in taken}) == 3
    assert pool.snapshot().missed == 2
    for cgroup in taken:
        pool.give_back(cgroup)
    await pool.aclose()
    assert leaves(tree) == set()


@on_uvloop
async def test_what_comes_back_is_killed_and_used_again(tree: CgroupTree) -> None:
    pool = CgroupPool(tree, 1)
    await pool.start()
    cgroup = pool.take()
    cgroup.limits.set_memory(64 * MB)
    cgroup.limits.set_pids(1)
    cgroup.settle()
    with inhabit(cgroup) as child:
        pool.give_back(cgroup)
        assert child.wait(5) == -9
    await until_recycled(pool)
    assert pool.snapshot().reused == int(cgroup.reusable)
    again = pool.take()
    assert not again.populated()
    with inhabit(again) as child:
        pool.give_back(again)
    await pool.aclose()
    assert leaves(tree) == set()


@on_uvloop
async def test_what_the_dead_used_is_given_back_when_they_are_dead(tree: CgroupTree) -> None:
    pool = CgroupPool(tree, 1)
    await pool.start()
    cgroup = pool.take()
    pids: list[list[int]] = []
    with inhabit(cgroup):
        pool.give_back(cgroup, lambda: pids.append(cgroup.pids()))
        assert pids == []
    await until_recycled(pool)
    assert pids == [[]]
    await pool.aclose()


@on_uvloop
async def test_a_frozen_sandbox_comes_back_too(tree: CgroupTree) -> None:
    pool = CgroupPool(tree, 1)
    await pool.start()
    cgroup = pool.take()
    with inhabit(cgroup):
        cgroup.freeze_nowait()
        pool.give_back(cgroup)
    await until_recycled(pool)
    again = pool.take()
    with inhabit(again):  # It would not say that it has joined if it were still frozen.
        tree.destroy_all(5)
    again.close()
    await pool.aclose()


@on_uvloop
async def test_it_keeps_no_more_than_its_size(tree: CgroupTree) -> None:
    pool = CgroupPool(tree, 2)
    await pool.start()
    taken = [pool.take() for _ in range(6)]
    for cgroup in taken:
        pool.give_back(cgroup)
    await until_recycled(pool)
    assert pool.snapshot().idle <= 2
    assert len(leaves(tree)) <= 2
    await pool.aclose()


@on_uvloop
async def test_in_balance_nothing_is_made_or_removed(tree: CgroupTree) -> None:
    pool = CgroupPool(tree, 4)
    await pool.start()
    for _ in range(20):
        pool.give_back(pool.take())
        await until_recycled(pool)
    cgroup = pool.take()
    if cgroup.reusable:
        assert pool.snapshot().made == 4
        assert pool.snapshot().reused == 20
    cgroup.close()
    await pool.aclose()


@on_uvloop
async def test_below_half_it_is_refilled(tree: CgroupTree) -> None:
    pool = CgroupPool(tree, 4)
    await pool.start()
    for _ in range(4):
        pool.take().close()
    while pool.snapshot().idle < 2:
        await asyncio.sleep(0)
    assert pool.snapshot().missed == 0
    await pool.aclose()


@on_uvloop
async def test_one_that_cannot_be_removed_stops_no_one(tree: CgroupTree) -> None:
    pool = CgroupPool(tree, 2)
    await pool.start()
    Path(tree.directories[0], "sandbox-1", "below").mkdir()
    await pool.aclose()
    assert pool.snapshot().stuck == 1
    for top in tree.directories:
        assert not Path(top, "sandbox-2").exists()


@on_uvloop
async def test_closed_it_gives_nothing(tree: CgroupTree) -> None:
    pool = CgroupPool(tree, 1)
    await pool.start()
    await pool.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        pool.take()


@on_uvloop
async def test_a_tree_that_is_not_there_fails_at_start(tree: CgroupTree) -> None:
    pool = CgroupPool(CgroupTree(tree.hierarchies, f"{tree.name}-not-made"), 2)
    with pytest.raises(FileNotFoundError):
        await pool.start()
    await pool.aclose()


@on_uvloop
async def test_another_reader_sees_the_limits_and_the_processes_of_what_the_pool_made(tree: CgroupTree) -> None:
    """As cgroupspy reads them, which knows version 1."""
    memory, cpu = tree.hierarchies.memory, tree.hierarchies.cpu
    if memory is None or cpu is None or (memory.version, cpu.version) != (1, 1):
        pytest.skip("cgroupspy reads cgroups of version 1 alone")
    pool = CgroupPool(tree, 1)
    await pool.start()
    for memory_mb, cpus in ((64, 0.5), (128, 2.0)):  # the second has the first's directory
        cgroup = pool.take()
        cgroup.limits.set(memory_mb * MB, 16, cpus)
        child = inhabit(cgroup)
        seen = read_limits(*(os.path.join(base, tree.name, cgroup.name) for base in (memory.base, cpu.base)))
        assert (seen.memory_bytes, seen.cpus, seen.pids) == (memory_mb * MB, cpus, (child.pid,))
        pool.give_back(cgroup)
        await until_recycled(pool)
        child.communicate()
    await pool.aclose()
