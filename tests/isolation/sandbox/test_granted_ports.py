"""Ports of the host for sandboxes: which are taken, and what is said where none can be had."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sockd.base.errors import NoHostPort
from sockd.isolation.sandbox import granted_ports
from sockd.isolation.sandbox.granted_ports import GrantedPorts
from sockd.linux.bpf.port_guard import PortGuard
from sockd.linux.cgroups.tree import CgroupTree, Hierarchies
from tests.support.emulated import counts_sockets


@pytest.fixture
def guard() -> Iterator[PortGuard]:
    tree = CgroupTree.create(Hierarchies.detect(), f"sockd-test-{uuid.uuid4().hex[:8]}")
    try:
        tree.guard_ports()
        yield tree.ports
    finally:
        tree.close()
        tree.destroy_all(5)


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The kernel gives every port but three to connections."""
    files = {"_RANGE": "1024 65535\n", "_RESERVED": "20011,20013-20014\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(granted_ports, name, tmp_path / name)
    return [20011, 20013, 20014]


@pytest.mark.root
@counts_sockets
def test_no_port_is_granted_twice_and_none_that_is_taken(guard: PortGuard, three: list[int]) -> None:
    granted = GrantedPorts(guard)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.7", three[1]))
        assert sorted([granted.grant(61001), granted.grant(61001)]) == [three[0], three[2]]
        with pytest.raises(NoHostPort, match="ip_local_reserved_ports"):
            granted.grant(61002)
    assert granted.grant(61002) == three[1], "what it found taken was let go"
    granted.release(three[0])
    assert granted.grant(61003) == three[0]


def test_ports_that_the_kernel_gives_to_connections_are_not_used() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert {first, last}.isdisjoint(granted_ports.ports()) or granted_ports._RESERVED.read_text().strip()


def test_where_ports_cannot_be_guarded_none_is_granted() -> None:
    granted = GrantedPorts(PortGuard())
    for refused in (granted.check, lambda: granted.grant(61001)):
        with pytest.raises(NoHostPort, match="eBPF") as failed:
            refused()
        assert failed.value.status == 503 and 'network = "private"' in failed.value.message
