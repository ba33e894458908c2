"""Ports that a cgroup may not bind, and sockets that are counted in it: on this kernel, by processes that are in it."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sockd.linux.bpf.port_guard import PortGuard
from sockd.linux.bpf.socket_counts import PORT_KEPT_S, SocketCounts
from sockd.linux.bpf.socket_programs import RESERVED
from sockd.linux.cgroups.tree import Cgroup, CgroupTree, Hierarchies
from sockd_zygote.handlers.egress import LEVEL, USES
from tests.support.emulated import counts_sockets
from tests.support.threads import at_once

pytestmark = [pytest.mark.root, counts_sockets]

MOST = 40
RELEASE = tuple(map(int, os.uname().release.split(".")[:2]))
REFUSAL = "EMFILE" if RELEASE >= (5, 18) else "EPERM"
"""What socket(2) says at the limit."""
INSIDE = """
import array, errno, json, os, socket, sys
kept = []
for line in sys.stdin:
    try:
        answer = eval(line)
    except OSError as error:
        answer = errno.errorcode[error.errno]
    print(json.dumps(answer), flush=True)
"""
BIND = "[kept.append(socket.socket(socket.{family}, socket.{kind})), kept[-1].bind(({host!r}, {port}))] and 'ok'"


@pytest.fixture
def tree() -> Iterator[CgroupTree]:
    tree = CgroupTree.create(Hierarchies.detect(), f"sockd-test-{uuid.uuid4().hex[:8]}")
    try:
        if tree.hierarchies.unified is None:
            pytest.skip("there is no v2 hierarchy")
        tree.guard_ports()
        tree.count_sockets(MOST)
        yield tree
    finally:
        tree.close()
        tree.destroy_all(5)


@pytest.fixture
def leaf(tree: CgroupTree) -> Iterator[Callable[[str], Cgroup]]:
    made: list[Cgroup] = []

    def make(name: str) -> Cgroup:
        made.append(tree.cgroup(name))
        made[-1].sockets.limit(10 * MOST)
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def cgroup(leaf: Callable[[str], Cgroup]) -> Cgroup:
    return leaf("one")


class Inside:
    """A process in a cgroup, which evaluates the expressions that it gets."""

    def __init__(self, cgroup: Cgroup) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", INSIDE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for fd in cgroup.procs_fds:
            os.write(fd, str(self._process.pid).encode())

    def tell(self, expression: str) -> Any:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def sockets(self, count: int) -> Any:
        return self.tell(f"[kept.append(socket.socket()) for _ in range({count})] and 'ok'")

    def close(self) -> None:
        with self._process as process:
            assert process.stdin
            process.stdin.close()


@pytest.fixture
def inside(leaf: object) -> Iterator[Callable[[Cgroup], Inside]]:
    started: list[Inside] = []

    def start(cgroup: Cgroup) -> Inside:
        started.append(Inside(cgroup))
        return started[-1]

    yield start
    for each in started:
        each.close()


Start = Callable[[Cgroup], Inside]
Leaf = Callable[[str], Cgroup]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM"])
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1"])
def test_a_held_port_is_bound_on_no_address(
    tree: CgroupTree, cgroup: Cgroup, inside: Start, host: str, kind: str
) -> None:
    port, process = free_port(), inside(cgroup)
    bind = BIND.format(family="AF_INET6" if ":" in host else "AF_INET", kind=kind, host=host, port=port)
    tree.ports.hold(port)
    assert process.tell(bind) == "EPERM"
    assert process.tell(bind.replace(f", {port})", ", 0)")) == "ok"
    tree.ports.release(port)
    assert process.tell(bind) == "ok"


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::ffff:127.0.0.1"])
def test_a_granted_port_is_bound_by_its_uid_alone(tree: CgroupTree, cgroup: Cgroup, inside: Start, host: str) -> None:
    port, owner, other = free_port(), inside(cgroup), inside(cgroup)
    owner.tell("os.setuid(61001)")
    other.tell("os.setuid(61002)")
    bind = BIND.format(family="AF_INET6" if ":" in host else "AF_INET", kind="SOCK_STREAM", host=host, port=port)
    tree.ports.grant(port, 61001)
    assert (other.tell(bind), inside(cgroup).tell(bind), owner.tell(bind)) == ("EPERM", "EPERM", "ok")
    owner.close()
    assert other.tell(bind) == "EPERM"
    tree.ports.release(port)
    assert other.tell(bind) == "ok"


def test_a_port_is_granted_once_and_one_that_is_held_to_none(tree: CgroupTree, cgroup: Cgroup, inside: Start) -> None:
    port, owner = free_port(), inside(cgroup)
    owner.tell("os.setuid(61001)")
    tree.ports.grant(port, 61001)
    with pytest.raises(OSError) as granted:
        tree.ports.grant(port, 61002)
    assert granted.value.errno == errno.EADDRINUSE
    bind = BIND.format(family="AF_INET", kind="SOCK_STREAM", host="127.0.0.1", port=port)
    tree.ports.hold(port)
    assert owner.tell(bind) == "EPERM", "the worker listens there itself now"
    tree.ports.release(port)
    assert owner.tell(bind) == "EPERM", "the first of two is released"
    tree.ports.release(port)
    assert owner.tell(bind) == "ok"


def test_a_port_is_held_until_each_who_held_it_has_released_it(tree: CgroupTree, cgroup: Cgroup, inside: Start) -> None:
    port, process = free_port(), inside(cgroup)
    bind = BIND.format(family="AF_INET", kind="SOCK_STREAM", host="127.0.0.1", port=port)
    tree.ports.hold(port)
    tree.ports.hold(port)
    tree.ports.release(port)
    assert process.tell(bind) == "EPERM"


def test_options_that_share_ports_do_not_help(tree: CgroupTree, cgroup: Cgroup, inside: Start) -> None:
    process = inside(cgroup)
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as listener:
        port = listener.getsockname()[1]
        tree.ports.hold(port)
        for family, host in (("AF_INET", "127.0.0.1"), ("AF_INET6", "::")):
            process.tell(f"kept.append(socket.socket(socket.{family}))")
            for option in ("SO_REUSEADDR", "SO_REUSEPORT"):
                process.tell(f"kept[-1].setsockopt(socket.SOL_SOCKET, socket.{option}, 1)")
            if family == "AF_INET6":
                process.tell("kept[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)")
            process.tell("kept[-1].setsockopt(socket.IPPROTO_IP, 24, 1)")  # IP_BIND_ADDRESS_NO_PORT
            assert process.tell(f"kept[-1].bind(({host!r}, {port}))") == "EPERM"


def test_another_network_namespace_has_ports_of_its_own(tree: CgroupTree, cgroup: Cgroup, inside: Start) -> None:
    port, process = free_port(), inside(cgroup)
    tree.ports.hold(port)
    process.tell("__import__('ctypes').CDLL(None).unshare(0x40000000)")
    bind = BIND.format(family="AF_INET", kind="SOCK_STREAM", host="0.0.0.0", port=port)
    assert process.tell(bind) == "ok"


def test_the_guard_outlives_its_maker_and_goes_with_the_cgroup(tree: CgroupTree, cgroup: Cgroup, inside: Start) -> None:
    """A daemon that was killed has closed its map; its sandboxes may live for a moment longer."""
    port, process = free_port(), inside(cgroup)
    tree.ports.hold(port)
    tree.close()
    assert process.tell(BIND.format(family="AF_INET6", kind="SOCK_STREAM", host="::1", port=port)) == "EPERM"


def test_a_socket_made_outside_and_no_one_else_is_judged(tree: CgroupTree) -> None:
    port = free_port()
    tree.ports.hold(port)
    with socket.create_server(("127.0.0.1", port)):
        assert tree.sockets.open == 0


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


USED = f"int.from_bytes(asked.getsockopt({LEVEL}, {USES}, 4), 'little')"
ASKS = "globals().update(asked=socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))"
OTHERS = """
libc = __import__("ctypes").CDLL(None)
def by_c():
    libc.close(libc.socket(socket.AF_INET6, socket.SOCK_DGRAM, 0))
def by_c_in_child():
    child = libc.fork()
    if child == 0:
        by_c()
        libc._exit(0)
    libc.waitpid(child, None, 0)
"""


def test_a_process_reads_how_often_its_cgroup_may_have_sent_something(
    cgroup: Cgroup, leaf: Leaf, inside: Start
) -> None:
    """The count only grows, whichever process and code uses a socket; refused ones and other cgroups do not matter."""
    process, other = inside(cgroup), inside(leaf("other"))
    for each in (process, other):
        each.tell(ASKS)
    process.tell(f"exec({OTHERS!r}, globals())")
    used = process.tell(USED)
    for number, way in enumerate(("by_c()", "by_c_in_child()", "socket.socket(2, 2).close()"), used + 1):
        process.tell(way)
        assert process.tell(USED) == number
    other.tell("[kept.append(socket.socket(2, 2)) for _ in range(3)] and 'ok'")
    assert process.tell("len(socket.socketpair())") == 2
    cgroup.sockets.limit(0)
    assert process.sockets(1) == REFUSAL
    assert process.tell(USED) == used + 3
    cgroup.sockets.limit()
    assert (process.sockets(1), process.tell(USED)) == ("ok", used + 4), "what has no limit is used from its making"


def test_a_tcp_socket_counts_as_used_when_it_connects_listens_or_is_accepted(cgroup: Cgroup, inside: Start) -> None:
    process = inside(cgroup)
    process.tell(ASKS)
    process.tell(f"exec({CONNECT!r}, globals())")
    used = process.tell(USED)
    process.tell(BIND.format(family="AF_INET6", kind="SOCK_STREAM", host="::1", port=0))
    process.tell("kept.pop().close()")
    assert (process.sockets(3), process.tell(USED)) == ("ok", used)
    assert process.tell("kept.pop().listen()") is None
    assert process.tell(USED) == used + 1
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        assert process.tell(f"kept.pop().connect({address!r})") is None
        assert process.tell(USED) == used + 2
        assert process.tell(f"kept.pop().sendto(b'.', socket.MSG_FASTOPEN, {address!r})") == 1
        assert process.tell(USED) == used + 3
        assert process.tell(f"[kept.append(socket.socket()), kept[-1].setsockopt(6, 30, 1)] and {USED}") == used + 3
        assert process.tell(f"[kept[-1].connect({address!r}), kept.pop().send(b'.')][1]") == 1
        assert process.tell(USED) == used + 4, "TCP_FASTOPEN_CONNECT sends with the first bytes"
    assert process.tell("connect(kept, 'nothing')") == "ok"
    assert process.tell(USED) == used + 7, "a listener, a client, and the connection that was accepted"


@pytest.mark.skipif(RELEASE < (6, 7), reason="no program sees Unix sockets before Linux 6.7")
def test_a_unix_socket_that_leaves_the_process_counts_as_used(cgroup: Cgroup, inside: Start) -> None:
    process = inside(cgroup)
    process.tell(ASKS)
    used, name = process.tell(USED), f"\0sockd-test-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        listener.bind(name)
        listener.listen()
        receiver.bind(f"{name}-datagrams")
        assert process.tell(f"socket.socket(socket.AF_UNIX).connect({name!r})") is None
        assert process.tell(USED) == used + 1
        assert process.tell(f"asked.sendto(b'.', {name!r} + '-datagrams')") == 1
        assert process.tell(USED) == used + 2


def test_options_of_the_kernel_are_as_without_ours(cgroup: Cgroup, inside: Start) -> None:
    process = inside(cgroup)
    process.tell("globals().update(tcp=socket.socket())")
    assert process.tell("tcp.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)") == socket.SOCK_STREAM
    assert process.tell("len(tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1024))") > 100
    congestion = "__import__('ctypes').create_string_buffer(65536)"
    length = "__import__('ctypes').byref(__import__('ctypes').c_int(65536))"
    assert process.tell(f"__import__('ctypes').CDLL(None).getsockopt(tcp.fileno(), 6, 13, {congestion}, {length})") == 0
    assert process.tell(f"tcp.getsockopt({LEVEL}, 2, 4)") == process.tell("tcp.getsockopt(0x7777, 1, 4)") == "ENOTSUP"


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


CONNECT = r"""
def connect(kept, keep):
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    kept += {"server": [server], "listener": [listener], "nothing": []}[keep]
    for each in (server, client, listener):  # the server first: TIME_WAIT is at the listener's port
        each in kept or each.close()
    return "ok"
"""
"""Leaves of a connection of its own with itself what is to be kept."""


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


def test_a_host_without_a_v2_hierarchy_is_reported(tree: CgroupTree) -> None:
    hierarchies = dataclasses.replace(tree.hierarchies, unified=None)
    with pytest.raises(OSError) as refused:
        CgroupTree(hierarchies, "sockd-test-none").guard_ports()
    assert refused.value.errno == errno.EOPNOTSUPP


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
