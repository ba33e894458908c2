"""Networks that a cgroup may not send to: on this kernel, by a process that is in it."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sockd.linux.cgroups.tree import CgroupTree
from sockd.linux.network.resolv_conf import nameservers

DENIED = [ip_network(each) for each in ("127.9.0.0/16", "127.8.0.1/32", "::1/128")]
INSIDE = """
import errno, json, socket, sys
def source_route(what):
    return bytes([what["route"], 7, 4]) + socket.inet_aton(what["host"]) + bytes(1)
def ask(what):
    sock = socket.socket(getattr(socket, what["family"]), getattr(socket, what["kind"]), what.get("protocol", 0))
    address = (what["host"], what["port"])
    try:
        if what["call"] == "connect":
            sock.connect(address)
        elif what["call"] == "sendto":
            sock.sendto(b"x", address)
        elif what["call"] == "corked":
            sock.sendto(b"x", socket.MSG_MORE, address)
        elif what["call"] == "corked after another":
            sock.sendto(b"x", socket.MSG_MORE, ("127.0.0.1", what["port"]))
            sock.sendto(b"y", address)
        elif what["call"] == "corked, then connected":
            sock.sendto(b"x", socket.MSG_MORE, ("127.0.0.1", what["port"]))
            sock.connect(address)
        elif what["call"] == "routed":
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, source_route(what))
            sock.setblocking(False)
            sock.connect(("127.0.0.1", what["port"]))
            sock.send(b"x")
        elif what["call"] == "routed in IPv6":
            segments = bytes([0, 4, 4, 1, 1, 0, 0, 0]) + bytes(16) + socket.inet_pton(socket.AF_INET6, what["host"])
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RTHDR, segments)
            sock.sendto(b"x", ("2001:db8::1", what["port"]))
        elif what["call"] == "routed by message":
            sock.sendmsg([b"x"], [(socket.IPPROTO_IP, socket.IP_RETOPTS, source_route(what))], 0, ("127.0.0.1", what["port"]))
        else:
            sock.sendto(b"x", socket.MSG_FASTOPEN, address)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "ok"
for line in sys.stdin:
    print(json.dumps(ask(json.loads(line))), flush=True)
"""

pytestmark = pytest.mark.root
Ask = Callable[..., Any]


class Guarded(NamedTuple):
    """Cgroups that may not send to DENIED."""

    tree: CgroupTree
    unguarded: str
    """Why packets are not guarded; empty if they are."""


@pytest.fixture
def guarded(v2_tree: CgroupTree) -> Guarded:
    exceptions = [("127.8.0.1", 53), ("127.8.0.1", 3141), ("9.9.9.9", 53), ("::1", 53)]
    return Guarded(v2_tree, v2_tree.deny_networks(DENIED, exceptions))


@pytest.fixture
def packet_guard(guarded: Guarded) -> None:
    if guarded.unguarded:
        pytest.skip(f"needs Linux 6.15: {guarded.unguarded}")


@pytest.fixture
def ask(guarded: Guarded) -> Iterator[Ask]:
    """What a process in a guarded cgroup hears of the kernel."""
    cgroup = guarded.tree.cgroup("one")
    try:
        with subprocess.Popen([sys.executable, "-c", INSIDE], stdin=-1, stdout=-1, text=True) as process:
            assert process.stdin and process.stdout
            for fd in cgroup.procs_fds:
                os.write(fd, str(process.pid).encode())

            def say(host: str, port: int = 9, **more: object) -> Any:
                assert process.stdin and process.stdout
                what = {
                    "family": "AF_INET",
                    "kind": "SOCK_STREAM",
                    "call": "connect",
                    "host": host,
                    "port": port,
                    **more,
                }
                process.stdin.write(json.dumps(what) + "\n")
                process.stdin.flush()
                return json.loads(process.stdout.readline())

            yield say
            process.stdin.close()
    finally:
        cgroup.close()


def has_mptcp() -> bool:
    """Whether this kernel has CONFIG_MPTCP."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, MPTCP).close()
    except OSError:
        return False
    return True


MPTCP = 262
WAYS: list[dict[str, Any]] = [
    {"kind": "SOCK_STREAM", "call": "connect"},
    *([{"kind": "SOCK_STREAM", "call": "connect", "protocol": MPTCP}] if has_mptcp() else []),
    {"kind": "SOCK_STREAM", "call": "fast open"},
    {"kind": "SOCK_DGRAM", "call": "connect"},
    {"kind": "SOCK_DGRAM", "call": "sendto"},
    {"kind": "SOCK_DGRAM", "call": "corked"},
]
LOOSE, STRICT = 131, 137
"""Source routes (RFC 791): the first address is where the packet goes to, and what was named is reached from there."""
ROUTED: list[dict[str, Any]] = [
    {"kind": "SOCK_STREAM", "call": "routed", "route": LOOSE},
    {"kind": "SOCK_DGRAM", "call": "routed", "route": LOOSE},
    {"kind": "SOCK_DGRAM", "call": "routed", "route": STRICT},
    {"kind": "SOCK_DGRAM", "call": "routed by message", "route": LOOSE},
]


SO_ATTACH_FILTER = 26
TO_OURS = [(0x20, 0, 0, 16), (0x54, 0, 0, 0xFFFE0000), (0x15, 0, 1, 0x7F080000), (6, 0, 0, 0xFFFF), (6, 0, 0, 0)]
"""Packets to 127.8.0.0/15 alone (bpf(4)): the loopback interface carries those of other tests, too."""


class Sniffer:
    """The addresses to which packets of IPv4 leave over the loopback interface, in their order."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def until(self, host: str) -> list[str]:
        """All of them, until one to this address has left. Raises: TimeoutError."""
        found: list[str] = []
        while host not in found:
            found.append(socket.inet_ntoa(self._sock.recv(1 << 16)[16:20]))
        return found


@pytest.fixture
def sniffer() -> Iterator[Sniffer]:
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM) as sock:
        program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in TO_OURS))
        sock.setsockopt(
            socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxQ", len(TO_OURS), ctypes.addressof(program))
        )
        sock.bind(("lo", 0x0800))
        sock.settimeout(10)
        yield Sniffer(sock)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way['kind']} {way['call']} {way.get('protocol', '')}")
@pytest.mark.parametrize("form", ["", "::ffff:"])
def test_denied_networks_are_not_sent_to(ask: Ask, way: dict[str, Any], form: str) -> None:
    family = {"family": "AF_INET6" if form else "AF_INET"}
    for host in ("127.9.0.1", "127.9.255.254", "127.8.0.1"):
        assert ask(form + host, **way, **family) == "EPERM"
    assert ask(form + "127.0.0.1", **way, **family) in ("ok", "ECONNREFUSED")
    assert ask(form + "127.8.0.2", **way, **family) in ("ok", "ECONNREFUSED")


@pytest.mark.usefixtures("packet_guard")
@pytest.mark.parametrize("way", ROUTED, ids=lambda way: f"{way['kind']} {way['call']} {way['route']}")
def test_no_packet_is_routed_through_a_denied_network(ask: Ask, sniffer: Sniffer, way: dict[str, Any]) -> None:
    assert ask("127.9.0.1", **way) == {"SOCK_STREAM": "EINPROGRESS"}.get(way["kind"], "EPERM")
    ask("127.8.0.2", **way)
    assert "127.9.0.1" not in sniffer.until("127.8.0.2")
    ask("127.8.0.1", 53, **way)
    sniffer.until("127.8.0.1")


@pytest.mark.usefixtures("packet_guard")
def test_no_packet_is_routed_through_a_denied_network_of_ipv6(ask: Ask) -> None:
    way = {"family": "AF_INET6", "kind": "SOCK_DGRAM", "call": "routed in IPv6"}
    if ask("::1", 53, **way) == "EINVAL":
        pytest.skip("this kernel has no segment routing")
    assert ask("::1", 53, **way) == "EPERM"  # the port is behind the routing header: this is no exception
    assert ask("::1", **way) == "EPERM"


@pytest.mark.parametrize("call", ["corked after another", "corked, then connected"])
def test_a_corked_datagram_does_not_change_its_way(ask: Ask, sniffer: Sniffer, call: str) -> None:
    ask("127.9.0.1", kind="SOCK_DGRAM", call=call)
    ask("127.8.0.2", kind="SOCK_DGRAM", call="sendto")
    assert "127.9.0.1" not in sniffer.until("127.8.0.2")


def test_denied_networks_of_ipv6_are_not_sent_to(ask: Ask) -> None:
    assert ask("::1", family="AF_INET6") == "EPERM"
    assert ask("::1", family="AF_INET6", kind="SOCK_DGRAM", call="sendto") == "EPERM"


@pytest.mark.parametrize("form", ["", "::ffff:"])
def test_an_excepted_port_of_a_denied_network_is_sent_to(ask: Ask, form: str) -> None:
    family = {"family": "AF_INET6" if form else "AF_INET"}
    for way in WAYS:
        for port in (53, 3141):
            assert ask(form + "127.8.0.1", port, **way, **family) in ("ok", "ECONNREFUSED")
        assert ask(form + "127.8.0.1", 54, **way, **family) == "EPERM"
        assert ask(form + "127.9.0.1", 53, **way, **family) == "EPERM"
    assert ask("::1", 53, family="AF_INET6") in ("ok", "ECONNREFUSED", "EADDRNOTAVAIL")


def test_nameservers_are_read(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text(
        "# nameserver 1.1.1.1\nnameserver 10.0.0.2\nnameserver\nsearch a\nnameserver fe80::1%eth0\nnameserver ::1\n"
    )
    assert nameservers(file) == ["10.0.0.2", "::1"]
    assert nameservers(tmp_path / "none") == []
