"""Sockets that are counted in a cgroup, and their limits: on this kernel, by processes that are in it."""

from __future__ import annotations

import socket
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from sockd.linux.bpf.port_guard import PortGuard
from sockd.linux.bpf.socket_counts import PORT_KEPT_S, SocketCounts
from sockd.linux.bpf.socket_programs import RESERVED
from sockd.linux.cgroups.tree import Cgroup, CgroupTree
from tests.linux.socket_guards.inside import CONNECT, MOST, REFUSAL, Leaf, Start
from tests.support.emulated import counts_sockets
from tests.support.threads import at_once

pytestmark = [pytest.mark.root, counts_sockets]


def test_sockets_are_limited_by_cgroup_and_given_back(tree: CgroupTree, cgroup: Cgroup, inside: Start) -> None:
    process = inside(cgroup)
    cgroup.sockets.limit(10)
    assert process.sockets(10) == "ok"
    assert process.sockets(1) == REFUSAL
    assert cgroup.sockets.open == tree.sockets.open == 10
    assert process.tell("kept.pop().close()") is None
    assert process.sockets(1) == "ok"
    process.close()
    assert cgroup.sockets.open == tree.sockets.open == 0


def test_sockets_are_limited_by_function_over_all_its_cgroups(tree: CgroupTree, leaf: Leaf, inside: Start) -> None:
    function = tree.sockets.account(15)
    one, two, other = (leaf(name) for name in ("one", "two", "other"))
    for each in (one, two):
        each.sockets.limit(10, function.index)
    first, second = inside(one), inside(two)
    assert (first.sockets(10), second.sockets(5)) == ("ok", "ok")
    assert second.sockets(1) == REFUSAL
    assert (function.open, inside(other).sockets(5)) == (15, "ok")


def test_all_cgroups_together_are_limited(tree: CgroupTree, leaf: Leaf, inside: Start) -> None:
    processes = [inside(leaf(f"n{number}")) for number in range(4)]
    assert [process.sockets(10) for process in processes] == ["ok"] * 4
    assert {process.sockets(1) for process in processes} == {REFUSAL}
    assert tree.sockets.open == MOST


def test_others_cannot_take_the_last_sockets_of_a_cgroup(tree: CgroupTree, leaf: Leaf, inside: Start) -> None:
    """Some fill the worker's account, with sockets and with ports that count for a minute: the next has a few all the same."""
    greedy = leaf("greedy")
    greedy.sockets.limit(2 * MOST, tree.sockets.account(2 * MOST).index)
    hoarder, other = inside(greedy), inside(leaf("other"))
    assert (hoarder.sockets(MOST), hoarder.sockets(1)) == ("ok", REFUSAL)
    assert (other.sockets(RESERVED), other.sockets(1)) == ("ok", REFUSAL)
    other.tell("kept.clear()")
    hoarder.tell("kept.clear()")
    hoarder.tell(f"exec({CONNECT!r}, globals())")
    while hoarder.tell("connect(kept, 'nothing')") == "ok":
        pass
    assert (other.sockets(RESERVED), other.sockets(1)) == ("ok", REFUSAL)


def test_what_has_no_limit_is_not_counted(tree: CgroupTree, cgroup: Cgroup, leaf: Leaf, inside: Start) -> None:
    """The initscript engine is in a cgroup of ours, too."""
    engine = inside(cgroup)
    cgroup.sockets.limit()
    assert engine.sockets(2 * MOST) == "ok"
    assert cgroup.sockets.open == tree.sockets.open == 0
    assert inside(leaf("other")).sockets(MOST) == "ok"
    assert engine.sockets(1) == "ok"


def test_threads_that_make_sockets_at_once_are_counted_right(tree: CgroupTree, cgroup: Cgroup, inside: Start) -> None:
    processes = [inside(cgroup) for _ in range(4)]
    make_and_drop = "[socket.socket(2, 2).close() for _ in range(500)] and 'ok'"
    assert at_once(4, lambda number: processes[number].tell(make_and_drop)) == ["ok"] * 4
    assert cgroup.sockets.open == 0


def test_a_socket_that_was_passed_on_stays_its_makers(leaf: Leaf, cgroup: Cgroup, inside: Start) -> None:
    other = leaf("other")
    maker, holder = inside(cgroup), inside(other)
    name = f"'\\0sockd-test-{uuid.uuid4().hex}'"
    holder.tell(f"[kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)), kept[-1].bind({name})] and 0")
    maker.tell("kept.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))")
    maker.sockets(3)
    assert maker.tell(f"kept[0].connect({name})") is None
    maker.tell("socket.send_fds(kept[0], [b'x'], [each.fileno() for each in kept[1:]])")
    holder.tell("kept.append(socket.recv_fds(kept[0], 1, 10)[1])")
    maker.close()
    assert (cgroup.sockets.open, other.sockets.open) == (3, 0)
    assert not cgroup.scrub(), "it would be used again, and its next sandbox pay for these"
    holder.close()
    assert cgroup.sockets.open == 0
    assert cgroup.scrub() == cgroup.reusable


def test_accepted_connections_are_counted_until_they_are_closed(
    tree: CgroupTree, cgroup: Cgroup, inside: Start
) -> None:
    """Each may hold a port for which no other socket is left."""
    function = tree.sockets.account()
    cgroup.sockets.limit(10, function.index)
    process = inside(cgroup)
    process.tell(f"exec({CONNECT!r}, globals())")
    said = [process.tell("connect(kept, 'server')") for _ in range(10)]
    # A listener and a client are needed for one more, which is accepted without being asked whether there is room.
    assert said == ["ok"] * 9 + [REFUSAL]
    assert cgroup.sockets.open == function.open == tree.sockets.open
    assert 9 <= cgroup.sockets.open <= 10
    process.tell("[each.close() for each in kept] and kept.clear()")
    process.tell("__import__('gc').collect()")
    assert cgroup.sockets.open == function.open == tree.sockets.open == 0


def test_connections_that_no_one_accepted_are_counted_and_end_with_their_listener(
    tree: CgroupTree, cgroup: Cgroup, inside: Start
) -> None:
    process = inside(cgroup)
    process.tell("kept.append(socket.create_server(('127.0.0.1', 0)))")
    process.tell("[kept.append(socket.create_connection(kept[0].getsockname())) for _ in range(5)] and 0")
    assert cgroup.sockets.open == 11
    process.tell("kept.pop(0).close()")
    assert cgroup.sockets.open == 5
    process.tell("kept.clear()")
    assert cgroup.sockets.open == tree.sockets.open == 0


def test_ports_that_stay_taken_count_for_a_minute(tree: CgroupTree, cgroup: Cgroup, inside: Start) -> None:
    """A connection that was closed leaves its port in TIME_WAIT, without a socket to count."""
    cgroup.sockets.limit(MOST, tree.sockets.account(MOST).index)
    process = inside(cgroup)
    process.tell(f"exec({CONNECT!r}, globals())")
    said = [process.tell("connect(kept, 'nothing')") for _ in range(MOST)]
    assert said[: MOST - 3] == ["ok"] * (MOST - 3) and said[-1] == REFUSAL
    assert tree.sockets.open == 0
    tree.sockets.forget_ports(100.0)
    tree.sockets.forget_ports(100.0 + PORT_KEPT_S - 1)
    assert process.sockets(1) == REFUSAL
    tree.sockets.forget_ports(100.0 + PORT_KEPT_S)
    assert process.sockets(MOST) == "ok"


def test_a_listener_that_was_never_bound_has_taken_a_port_too(tree: CgroupTree, cgroup: Cgroup, inside: Start) -> None:
    cgroup.sockets.limit(MOST, tree.sockets.account(MOST).index)
    process = inside(cgroup)
    listen = "[kept.append(socket.socket()), kept[-1].listen(), kept.pop().close()] and 'ok'"
    said = [process.tell(listen) for _ in range(MOST + 1)]
    assert said == ["ok"] * MOST + [REFUSAL]


def test_clients_and_datagrams_take_no_port_for_longer_than_they_are_open(
    tree: CgroupTree, cgroup: Cgroup, inside: Start
) -> None:
    process = inside(cgroup)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connect = f"socket.create_connection({listener.getsockname()!r}).close()"
        datagram = "[kept.append(socket.socket(2, 2)), kept[-1].bind(('127.0.0.1', 0)), kept.pop().close()] and None"
        for _ in range(2 * MOST):
            assert process.tell(connect) is None
            listener.accept()[0].close()
            assert process.tell(datagram) is None


def test_a_scrubbed_cgroup_has_the_limits_of_none_before(tree: CgroupTree, cgroup: Cgroup, inside: Start) -> None:
    cgroup.sockets.limit(0)
    process = inside(cgroup)
    assert process.sockets(1) == REFUSAL
    process.close()
    cgroup.scrub()
    cgroup.sockets.limit(1)
    assert inside(cgroup).sockets(1) == "ok"


def test_accounts_are_used_again_only_when_they_are_empty(
    tree: CgroupTree, cgroup: Cgroup, inside: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sockd.linux.bpf.socket_counts._ACCOUNTS", tree.sockets._used + 1)
    function = tree.sockets.account()
    index = function.index
    cgroup.sockets.limit(MOST, index)
    process = inside(cgroup)
    process.sockets(1)
    function.close()
    assert tree.sockets.account().index == 0, "there is none left"
    process.close()
    again = tree.sockets.account()
    assert (again.index, again.open) == (index, 0)


def test_where_nothing_is_counted_nothing_is_refused() -> None:
    counts, guard = SocketCounts(), PortGuard()
    guard.hold(1)
    guard.release(1)
    account = counts.account(0)
    account.limit(0)
    account.close()
    assert (account.open, counts.open, counts.counts) == (0, 0, False)


def test_what_a_leaf_costs_of_sockets_is_nothing_when_it_is_used(tree: CgroupTree, cgroup: Cgroup) -> None:
    """Limits are set by writing to memory: strace of a worker shows no call more for a start."""
    calls: list[str] = []

    def trace(frame: Any, event: str, argument: Any) -> None:
        if event == "c_call":
            calls.append(getattr(argument, "__qualname__", str(argument)))

    sys.setprofile(trace)
    try:
        cgroup.sockets.limit(5, 1)
        _ = cgroup.sockets.open
    finally:
        sys.setprofile(None)
    assert calls == ["setprofile"]
    assert Path(cgroup._files[0].path).exists()
