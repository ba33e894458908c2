"""A small world for private networks: a host of its own in a network namespace, and an internet that it is linked to.

Everything is real but the distance: the internet is one more namespace that has each address which somebody could want to reach,
listens on them and notes every packet that arrives. Sockets of all sides are in the test's process; each stays where it was made.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sockd.linux.network import network_namespaces, rtnetlink
from sockd.linux.network.netlink import ROUTE, NetlinkSocket

PUBLIC = "9.9.9.9"
OTHER_PUBLIC = "8.8.4.4"
PRIVATE = "10.1.2.3"
METADATA = "169.254.169.254"
CLOUD_METADATA = "100.100.100.200"
UNUSED_RANGE = "100.99.9.9"
THERE = (PUBLIC, OTHER_PUBLIC, PRIVATE, METADATA, CLOUD_METADATA, UNUSED_RANGE, "192.168.7.7", "198.19.1.1")
"""Addresses of the internet's."""
HOST = "5.5.5.2"
"""The host's, on its link to the internet."""
ROUTER = "5.5.5.1"
"""The other end."""
PORT = 4433
OTHER_PORT = 4434
WAIT_S = 30.0
_WAN, _INSIDE = 20, 21
_MACS = bytes.fromhex("02aa00000001"), bytes.fromhex("02aa00000002")
_ETH_P_ALL = 3
_SO_RCVBUFFORCE = 33


@dataclass
class Lab:
    """The two namespaces and what is open in them."""

    host: int
    internet: int
    stack: contextlib.ExitStack
    listeners: dict[tuple[str, int], socket.socket] = field(default_factory=dict)

    def opened(self, namespace: int, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """A socket in a namespace, closed with the lab."""
        with network_namespaces.entered(namespace):
            sock = self.stack.enter_context(socket.socket(family, kind, protocol))
        sock.settimeout(WAIT_S)
        return sock

    def tcp(self, namespace: int) -> socket.socket:
        return self.opened(namespace, socket.AF_INET, socket.SOCK_STREAM)

    def udp(self, namespace: int) -> socket.socket:
        return self.opened(namespace, socket.AF_INET, socket.SOCK_DGRAM)

    def listen(self, namespace: int, host: str, port: int) -> socket.socket:
        """A TCP listener; the kernel completes connections to it without us."""
        sock = self.tcp(namespace)
        sock.bind((host, port))
        sock.listen(64)
        return sock

    def receive(self, namespace: int, host: str, port: int) -> socket.socket:
        """A UDP socket that is bound."""
        sock = self.udp(namespace)
        sock.bind((host, port))
        return sock

    def capture(self, namespace: int, link: str) -> socket.socket:
        """Everything that arrives on a link from now on."""
        with network_namespaces.entered(namespace):
            sock = self.stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)))
            sock.bind((link, _ETH_P_ALL))
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 24)
        return sock


def frames_of(capture: socket.socket) -> Iterator[bytes]:
    """All that has been received since the last call."""
    capture.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            yield capture.recv(1 << 16)


@contextlib.contextmanager
def lab() -> Iterator[Lab]:
    """The calling thread is on the lab's host for the block."""
    with contextlib.ExitStack() as stack:
        host, internet = network_namespaces.new(), network_namespaces.new()
        stack.callback(os.close, host)
        stack.callback(os.close, internet)
        _link(host, internet)
        stack.enter_context(network_namespaces.entered(host))
        network_namespaces.set_sysctl("ipv4/ip_forward", 1)
        yield Lab(host, internet, stack)


def _link(host: int, internet: int) -> None:
    with network_namespaces.entered(internet):
        there = NetlinkSocket.open(ROUTE)
    with network_namespaces.entered(host):
        here = NetlinkSocket.open(ROUTE)
    with contextlib.closing(here), contextlib.closing(there):
        pair = rtnetlink.veth(
            *("wan0", "lan0"),
            index=_WAN,
            peer_index=_INSIDE,
            mac=_MACS[0],
            peer_mac=_MACS[1],
            mtu=1400,
            namespace=internet,
            up=True,
        )
        here.exchange([pair])
        here.exchange([rtnetlink.link_up(rtnetlink.LOOPBACK), rtnetlink.address(_WAN, HOST, 24)])
        there.exchange([rtnetlink.link_up(each) for each in (rtnetlink.LOOPBACK, _INSIDE)])
        there.exchange([rtnetlink.address(rtnetlink.LOOPBACK, each, 32) for each in THERE])
        there.exchange([rtnetlink.address(_INSIDE, ROUTER, 24), rtnetlink.neighbour(_INSIDE, HOST, _MACS[0])])
        there.exchange([rtnetlink.default_route(_INSIDE, HOST)])
        here.exchange([rtnetlink.neighbour(_WAN, ROUTER, _MACS[1]), rtnetlink.default_route(_WAN, ROUTER)])


def read(namespace: int) -> dict[str, list[list[Any]]]:
    """What a namespace holds, by `sockd.client.cli.doctor.network_reader`."""
    with network_namespaces.entered(namespace):
        done = subprocess.run(
            [sys.executable, "-m", "sockd.client.cli.doctor.network_reader"],
            capture_output=True,
            check=True,
            cwd=Path(__file__).parents[3],
        )
    found: dict[str, list[list[Any]]] = json.loads(done.stdout)
    return found


class OwnNamespaces:
    """Namespaces owned by us, root: a process in one may do all that the kernel lets an attacker do."""

    async def make(self, count: int) -> list[int]:
        made = [network_namespaces.new() for _ in range(count)]
        for namespace in made:
            with network_namespaces.entered(namespace):
                network_namespaces.bring_loopback_up()
        return made


def checksum(data: bytes) -> int:
    """Return the checksum of the internet protocols (RFC 1071)."""
    total: int = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + bytes(len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ip_packet(
    source: str, destination: str, protocol: int, payload: bytes, *, fragment: int = 0, number: int = 1
) -> bytes:
    """An IPv4 packet. Args: fragment: the field of flags and offset; number: the packet's id."""
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), number, fragment, 64, protocol, 0)
    head += socket.inet_aton(source) + socket.inet_aton(destination)
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def udp_datagram(port: int, payload: bytes, *, source_port: int = 5353) -> bytes:
    """A UDP header and payload, without a checksum, which IPv4 allows."""
    return struct.pack("!HHHH", source_port, port, 8 + len(payload), 0) + payload


def tcp_segment(source: str, destination: str, port: int, flags: int, payload: bytes) -> bytes:
    """A TCP header with the flags' low byte, and a payload. Its source port is the flags and the destination's last bits."""
    source_port = 20_000 + port % 1000 + flags
    head = struct.pack("!HHIIBBHHH", source_port, port, 1, 0, 0x50, flags, 1024, 0, 0)
    pseudo = (
        socket.inet_aton(source) + socket.inet_aton(destination) + struct.pack("!BBH", 0, 6, len(head) + len(payload))
    )
    return head[:16] + struct.pack("!H", checksum(pseudo + head + payload)) + head[18:] + payload
