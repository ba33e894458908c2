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
from tests.support.house import MB, House, status_of, uids_in_use

pytestmark = pytest.mark.root


def test_zygotes_nest_three_deep_and_their_forks_have_all_that_was_imported(house: House) -> None:
    for name in "abc":
        house.add_package(name, {f"package_{name}.py": f"value = {name!r}\n"})

    def look(event: Any) -> Any:
        import os
        import sys

        return [name for name in ("package_a", "package_b", "package_c") if name in sys.modules], os.getuid()

    zygotes = [house.root]
    for depth, name in enumerate("abc"):
        zygotes.append(house.spawn(zygotes[-1], [f"package_{name}"]))
        pid = pid_of(zygotes[-1])
        block = zygotes[-1].uids
        assert set(status_of(pid)["Uid"].split()) == {str(block.absolute)}, depth
        map_of = Path(f"/proc/{pid}/uid_map").read_text().split()
        assert map_of == ["1000", str(block.absolute), str(block.count)]
    uids = set()
    for depth, zygote in enumerate(zygotes):
        running = house.start(look, zygote=zygote)
        assert running.answer() == [[f"package_{name}" for name in "abc"[:depth]], 1000]
        (uid,) = set(status_of(running.pid)["Uid"].split())
        assert zygote.uids.absolute < int(uid) < zygote.uids.absolute + zygote.uids.count
        uids.add(uid)
    assert len(uids) == 4


def test_too_deep_a_tree_is_refused_and_nothing_is_lost(house: House) -> None:
    zygotes = [house.root]
    while zygotes[-1].uids.has_child:
        zygotes.append(house.spawn(zygotes[-1]))
    with pytest.raises(NoCapacity, match="too deep"):
        house.spawn(zygotes[-1])
    assert len(zygotes) >= 3
    assert house.answer(HANDLER, 5, zygote=zygotes[-1]) == 5


def test_a_zygotes_memory_is_limited(house: House) -> None:
    source = "def handler(event):\n    kept = [bytearray(1 << 20) for _ in range(200)]\n"
    error = house.reply(source, memory_bytes=32 * MB, zygote=house.spawn()).error
    assert isinstance(error, OutOfMemory)  # its sandboxes' is their own


@pytest.mark.parametrize("whole_house", ["auto", (6, 1)], indirect=True)
@pytest.mark.parametrize("which", ["root", "node"])
def test_how_a_sandbox_ended_is_known_from_any_zygote(house: House, which: str) -> None:
    """The kernel reaps for Zygotes of every level: a zombie would keep its exit status, and its place, to itself."""
    zygote = house.root if which == "root" else house.spawn()
    error = house.start("import os\ndef handler(event):\n    os._exit(event)\n", zygote=zygote).request(5).error
    reason = "with error: exit status 5"
    assert error is not None and error.message == f"Runtime exited {reason}"


@pytest.mark.parametrize("whole_house", [(6, 1)], indirect=True)
def test_how_an_unknown_process_ended_is_unknown(house: House) -> None:
    for number in (1, 1 << 21, 1 << 40, -1, "1", None, True):
        assert house.run(house.root.exit_status(Child(-1, number), deadline_s=5)) is None


@pytest.mark.parametrize("whole_house", ["auto", (6, 1)], indirect=True)
@pytest.mark.parametrize("which", ["root", "node"])
def test_a_killed_zygote_leaves_its_sandboxes_serving(house: House, which: str) -> None:
    root = house.run(house.new_root())
    try:
        zygote = root if which == "root" else house.spawn(root)
        child = house.spawn(zygote)
        sandboxes = [house.start(HANDLER, zygote=zygote), house.start(HANDLER, zygote=child)]
        assert [running.answer(1) for running in sandboxes] == [1, 1]
        ending = house.start("import os\ndef handler(event):\n    os._exit(event)\n", zygote=zygote)
        os.kill(pid_of(zygote), signal.SIGKILL)
        house.run(until(lambda: zygote.name in house.ended))
        assert [running.answer(2) for running in sandboxes] == [2, 2]
        assert house.answer(HANDLER, 3, zygote=child) == 3
        error = ending.request(5).error
        reason = "with error: exit status 5"
        assert error is not None and error.message == f"Runtime exited {reason}"
        with pytest.raises(ZygoteGone):
            house.start(HANDLER, zygote=zygote)
        for running in sandboxes:
            running.destroy()
        house.settle()
        assert uids_in_use(zygote) == uids_in_use(child) == 0
        assert house.ended.count("farm") == 0
    finally:
        house.call(root.close)


def test_a_block_of_uids_comes_back_when_its_last_sandbox_has_gone(house: House) -> None:
    zygote = house.spawn()
    block = zygote.uids
    running = house.start(HANDLER, zygote=zygote)
    running.answer()
    house.call(zygote.close)
    other = house.spawn()
    assert other.uids.absolute != block.absolute
    assert running.answer(1) == 1
    running.destroy()
    house.settle()
    assert house.spawn().uids.absolute in (block.absolute, other.uids.absolute)


def test_a_root_behind_a_wall_gets_a_block_of_uids_when_all_others_are_in_use(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uids, "CHILD_ZYGOTES", 3)
    monkeypatch.setattr(uids, "KEPT_FOR_ROOTS", 1)
    root = house.run(house.new_root())
    try:
        children = [house.spawn(root) for _ in range(2)]
        assert not root.uids.has_child
        with pytest.raises(NoCapacity, match="every block of uids for child Zygotes is in use"):
            house.spawn(root)
        wall = Wall("none", house.networks, house.namespaces)
        walled = house.run(root.spawn(limit_bytes=512 * MB, deadline_s=10, on_end=lambda zygote: None, wall=wall))
        assert house.answer(HANDLER, 5, zygote=walled, network="none") == 5
        house.call(walled.close)
        house.call(children[0].close)
        house.settle()
        assert house.answer(HANDLER, 6, zygote=house.spawn(root)) == 6
        house.settle()
    finally:
        house.call(root.close)


def test_a_request_that_cannot_be_understood_is_refused_and_the_zygote_lives(house: House) -> None:
    zygote = house.spawn()
    with pytest.raises(ZygoteRefused, match="KeyError"):
        house.run(zygote.request("nonsense", (), deadline_s=5))
    with pytest.raises(ZygoteRefused, match="limit"):
        house.import_modules(zygote, ["m" * 1100] * 1000)
    assert zygote.in_flight == 0
    assert house.answer(HANDLER, 1, zygote=zygote) == 1


def test_a_child_that_cannot_join_its_cgroup_ends_and_says_why(house: House) -> None:
    """The child must neither go on unconfined nor serve beside its Zygote: both read the same wire until it has left it."""
    program = house.program(HANDLER)

    async def fork_into_nothing() -> tuple[bytes, str]:
        cgroup = house.tree.cgroup("gone")
        with ExitStack() as stack:
            stack.callback(cgroup.close)
            fds = cgroup.procs_fds
            for top in house.tree.directories:
                os.rmdir(os.path.join(top, "gone"))
            root = house.assembly.create(program.limits, program)
            stack.callback(root.close)
            ours, theirs = (stack.enter_context(sock) for sock in socket.socketpair())
            _, writer = (stack.enter_context(owned(fd)) for fd in os.pipe())
            uid = house.root.users.add_sandbox()
            stack.callback(house.root.users.remove_sandbox, uid)
            passed = (root.fd, theirs.fileno(), writer)
            pidfd = stack.enter_context(
                owned((await house.root.fork(uid, None, False, passed, fds, deadline_s=5)).pidfd)
            )
            await wait_exited(pidfd, 5)
            ours.settimeout(0)
            return ours.recv(10_000), pidfds.describe_status(pidfds.exit_status(pidfd))

    frame, status = house.run(fork_into_nothing())
    assert frame[4] == protocol.FAILED
    assert b"joining its cgroups" in frame
    assert status in ("Runtime exited with error: exit status 1", "Runtime exited without providing a reason")
    for number in range(3):
        assert house.answer(HANDLER, number) == number
