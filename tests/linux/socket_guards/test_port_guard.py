"""Ports that a cgroup may not bind: on this kernel, by processes that are in it."""

from __future__ import annotations

import dataclasses
import errno
import socket

import pytest

from sockd.linux.cgroups.tree import Cgroup, CgroupTree
from tests.linux.socket_guards.inside import BIND, Start
from tests.support.emulated import counts_sockets

pytestmark = [pytest.mark.root, counts_sockets]


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


def test_a_host_without_a_v2_hierarchy_is_reported(tree: CgroupTree) -> None:
    hierarchies = dataclasses.replace(tree.hierarchies, unified=None)
    with pytest.raises(OSError) as refused:
        CgroupTree(hierarchies, "sockd-test-none").guard_ports()
    assert refused.value.errno == errno.EOPNOTSUPP
