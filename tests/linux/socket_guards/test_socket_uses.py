"""How often a cgroup may have sent something, as its own processes read it: on this kernel."""

from __future__ import annotations

import socket
import uuid

import pytest

from sockd.linux.cgroups.tree import Cgroup
from sockd_zygote.handlers.egress import LEVEL, USES
from tests.linux.socket_guards.inside import BIND, CONNECT, REFUSAL, RELEASE, Leaf, Start
from tests.support.emulated import counts_sockets

pytestmark = [pytest.mark.root, counts_sockets]


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
