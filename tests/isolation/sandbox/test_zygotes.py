"""Zygotes on the real kernel: nested, limited, asked for nonsense, killed; what becomes of their forks."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sockd.base.errors import NoCapacity, OutOfMemory
from sockd.isolation.farm import uids
from sockd.isolation.farm.control import ZygoteGone, ZygoteRefused
from sockd.isolation.farm.walled_networks import Wall
from sockd.isolation.farm.zygote import Child
from sockd.linux.mounts import owned
from sockd.linux.processes import pidfds
from sockd.linux.processes.pidfds import wait_exited
from sockd_zygote import protocol
from tests.isolation.sandbox.zygotes import HANDLER, pid_of
from tests.support.fake_clock import until
from tests.support.harness import MB, Harness, status_of, uids_in_use

pytestmark = pytest.mark.root


def test_zygotes_nest_three_deep_and_their_forks_have_all_that_was_imported(harness: Harness) -> None:
    for name in "abc":
        harness.add_package(name, {f"package_{name}.py": f"value = {name!r}\n"})

    def look(event: Any) -> Any:
        import os
        import sys

        return [name for name in ("package_a", "package_b", "package_c") if name in sys.modules], os.getuid()

    zygotes = [harness.root]
    for depth, name in enumerate("abc"):
        zygotes.append(harness.spawn(zygotes[-1], [f"package_{name}"]))
        pid = pid_of(zygotes[-1])
        block = zygotes[-1].uids
        assert set(status_of(pid)["Uid"].split()) == {str(block.absolute)}, depth
        map_of = Path(f"/proc/{pid}/uid_map").read_text().split()
        assert map_of == ["1000", str(block.absolute), str(block.count)]
    uids = set()
    for depth, zygote in enumerate(zygotes):
        running = harness.start(look, zygote=zygote)
        assert running.answer() == [[f"package_{name}" for name in "abc"[:depth]], 1000]
        (uid,) = set(status_of(running.pid)["Uid"].split())
        assert zygote.uids.absolute < int(uid) < zygote.uids.absolute + zygote.uids.count
        uids.add(uid)
    assert len(uids) == 4


def test_too_deep_a_tree_is_refused_and_nothing_is_lost(harness: Harness) -> None:
    zygotes = [harness.root]
    while zygotes[-1].uids.has_child:
        zygotes.append(harness.spawn(zygotes[-1]))
    with pytest.raises(NoCapacity, match="too deep"):
        harness.spawn(zygotes[-1])
    assert len(zygotes) >= 3
    assert harness.answer(HANDLER, 5, zygote=zygotes[-1]) == 5


def test_a_zygotes_memory_is_limited(harness: Harness) -> None:
    source = "def handler(event):\n    kept = [bytearray(1 << 20) for _ in range(200)]\n"
    error = harness.reply(source, memory_bytes=32 * MB, zygote=harness.spawn()).error
    assert isinstance(error, OutOfMemory)  # its sandboxes' is their own


@pytest.mark.parametrize("whole_harness", ["auto", (6, 1)], indirect=True)
@pytest.mark.parametrize("which", ["root", "node"])
def test_how_a_sandbox_ended_is_known_from_any_zygote(harness: Harness, which: str) -> None:
    """The kernel reaps for Zygotes of every level: a zombie would keep its exit status, and its place, to itself."""
    zygote = harness.root if which == "root" else harness.spawn()
    error = harness.start("import os\ndef handler(event):\n    os._exit(event)\n", zygote=zygote).request(5).error
    reason = "with error: exit status 5"
    assert error is not None and error.message == f"Runtime exited {reason}"


@pytest.mark.parametrize("whole_harness", [(6, 1)], indirect=True)
def test_how_an_unknown_process_ended_is_unknown(harness: Harness) -> None:
    for number in (1, 1 << 21, 1 << 40, -1, "1", None, True):
        assert harness.run(harness.root.exit_status(Child(-1, number), deadline_s=5)) is None


@pytest.mark.parametrize("whole_harness", ["auto", (6, 1)], indirect=True)
@pytest.mark.parametrize("which", ["root", "node"])
def test_a_killed_zygote_leaves_its_sandboxes_serving(harness: Harness, which: str) -> None:
    root = harness.run(harness.new_root())
    try:
        zygote = root if which == "root" else harness.spawn(root)
        child = harness.spawn(zygote)
        sandboxes = [harness.start(HANDLER, zygote=zygote), harness.start(HANDLER, zygote=child)]
        assert [running.answer(1) for running in sandboxes] == [1, 1]
        ending = harness.start("import os\ndef handler(event):\n    os._exit(event)\n", zygote=zygote)
        os.kill(pid_of(zygote), signal.SIGKILL)
        harness.run(until(lambda: zygote.name in harness.ended))
        assert [running.answer(2) for running in sandboxes] == [2, 2]
        assert harness.answer(HANDLER, 3, zygote=child) == 3
        error = ending.request(5).error
        reason = "with error: exit status 5"
        assert error is not None and error.message == f"Runtime exited {reason}"
        with pytest.raises(ZygoteGone):
            harness.start(HANDLER, zygote=zygote)
        for running in sandboxes:
            running.destroy()
        harness.settle()
        assert uids_in_use(zygote) == uids_in_use(child) == 0
        assert harness.ended.count("farm") == 0
    finally:
        harness.call(root.close)


def test_a_block_of_uids_comes_back_when_its_last_sandbox_has_gone(harness: Harness) -> None:
    zygote = harness.spawn()
    block = zygote.uids
    running = harness.start(HANDLER, zygote=zygote)
    running.answer()
    harness.call(zygote.close)
    other = harness.spawn()
    assert other.uids.absolute != block.absolute
    assert running.answer(1) == 1
    running.destroy()
    harness.settle()
    assert harness.spawn().uids.absolute in (block.absolute, other.uids.absolute)


def test_a_root_behind_a_wall_gets_a_block_of_uids_when_all_others_are_in_use(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uids, "CHILD_ZYGOTES", 3)
    monkeypatch.setattr(uids, "KEPT_FOR_ROOTS", 1)
    root = harness.run(harness.new_root())
    try:
        children = [harness.spawn(root) for _ in range(2)]
        assert not root.uids.has_child
        with pytest.raises(NoCapacity, match="every block of uids for child Zygotes is in use"):
            harness.spawn(root)
        wall = Wall("none", harness.networks, harness.namespaces)
        walled = harness.run(root.spawn(limit_bytes=512 * MB, deadline_s=10, on_end=lambda zygote: None, wall=wall))
        assert harness.answer(HANDLER, 5, zygote=walled, network="none") == 5
        harness.call(walled.close)
        harness.call(children[0].close)
        harness.settle()
        assert harness.answer(HANDLER, 6, zygote=harness.spawn(root)) == 6
        harness.settle()
    finally:
        harness.call(root.close)


def test_a_request_that_cannot_be_understood_is_refused_and_the_zygote_lives(harness: Harness) -> None:
    zygote = harness.spawn()
    with pytest.raises(ZygoteRefused, match="KeyError"):
        harness.run(zygote.request("nonsense", (), deadline_s=5))
    with pytest.raises(ZygoteRefused, match="limit"):
        harness.import_modules(zygote, ["m" * 1100] * 1000)
    assert zygote.in_flight == 0
    assert harness.answer(HANDLER, 1, zygote=zygote) == 1


def test_a_child_that_cannot_join_its_cgroup_ends_and_says_why(harness: Harness) -> None:
    """The child must neither go on unconfined nor serve beside its Zygote: both read the same wire until it has left it."""
    program = harness.program(HANDLER)

    async def fork_into_nothing() -> tuple[bytes, str]:
        cgroup = harness.tree.cgroup("gone")
        with ExitStack() as stack:
            stack.callback(cgroup.close)
            fds = cgroup.procs_fds
            for top in harness.tree.directories:
                os.rmdir(os.path.join(top, "gone"))
            root = harness.assembly.create(program.limits, program)
            stack.callback(root.close)
            ours, theirs = (stack.enter_context(sock) for sock in socket.socketpair())
            _, writer = (stack.enter_context(owned(fd)) for fd in os.pipe())
            uid = harness.root.users.add_sandbox()
            stack.callback(harness.root.users.remove_sandbox, uid)
            passed = (root.fd, theirs.fileno(), writer)
            pidfd = stack.enter_context(
                owned((await harness.root.fork(uid, None, False, passed, fds, deadline_s=5)).pidfd)
            )
            await wait_exited(pidfd, 5)
            ours.settimeout(0)
            return ours.recv(10_000), pidfds.describe_status(pidfds.exit_status(pidfd))

    frame, status = harness.run(fork_into_nothing())
    assert frame[4] == protocol.FAILED
    assert b"joining its cgroups" in frame
    assert status in ("Runtime exited with error: exit status 1", "Runtime exited without providing a reason")
    for number in range(3):
        assert harness.answer(HANDLER, number) == number
