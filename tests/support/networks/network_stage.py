"""A lab with private networks on which attacks are tried: by an attacker who is root in its namespace, which no sandbox is.

A packet of an attempt has a mark, by which it is found where it arrives.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
from dataclasses import dataclass, field

from sockd.base.config import NetworkConfig
from sockd.isolation.networks import egress, ruleset
from sockd.isolation.networks.endpoint import Endpoint
from sockd.isolation.networks.networks import Networks
from sockd.isolation.networks.policy import Policy
from sockd.isolation.networks.ruleset import GATEWAY
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from sockd.linux.network import network_namespaces, rtnetlink
from sockd.linux.network.netlink import ROUTE, NetlinkSocket
from tests.support.networks.network_lab import (
    HOST,
    OTHER_PUBLIC,
    PORT,
    PUBLIC,
    Lab,
    OwnNamespaces,
)

EVERYWHERE, ON_THE_INTERNET, BY_NAME, OF_THE_HOST = 5000, 6000, 7000, 5432
"""Ports that the attacker's rules open for all addresses, for the internet, for what a name stands for, and of the host."""
NAME = "database.example"
RULES = [
    f"{NAME}:{BY_NAME}",
    f"10.0.0.0/8:{PORT}",
    f"{PUBLIC}:{PORT}",
    OTHER_PUBLIC,
    f"0.0.0.0/0:{EVERYWHERE}",
    f"internet:{ON_THE_INTERNET}",
    f"host:{OF_THE_HOST}",
]
BRIDGE = "172.17.0.1"
"""One more address of the host's, as Docker's bridge has it."""
NEWEST = "5.5.5.77"
"""An address that the host gets while the attempts are made."""
PUBLISHED, CONTAINER = EVERYWHERE, "192.168.7.7"
"""A port of the host's that it publishes for a container, as Docker does."""
DOCKER = f"""
table ip docker {{
    chain publish {{
        type nat hook prerouting priority dstnat;
        ip daddr {{ {HOST}, {NEWEST} }} meta l4proto {{ tcp, udp }} th dport {PUBLISHED} dnat to {CONTAINER}:{PORT}
    }}
}}
"""
MOST = ruleset.Limits(connections=150, new_connections=600, queries=5)
WAIT_S = 5.0
SHORT_WAIT_S = 1.0
"""On a stage on which something is wrong on purpose: what does not come would most likely never come."""
_IP_HDRINCL = 3
_MARK = b"mark-%05d."


@dataclass(frozen=True)
class Result:
    """What became of an attempt."""

    arrived: bool
    refused: bool
    """An ICMP error that quotes it came back."""


PASSES, REFUSED, LOST = Result(True, False), Result(False, True), Result(False, False)


@dataclass
class Stage:
    """Who is there."""

    lab: Lab
    networks: Networks
    attacker: Endpoint
    policy: Policy
    neighbour: Endpoint
    stranger: Endpoint
    """An endpoint that has no rules."""
    raw: socket.socket
    """The attacker's, for IP packets."""
    frames: socket.socket
    """The attacker's, for whole frames."""
    gateway_mac: bytes
    wait_s: float = WAIT_S
    """For what should come."""
    expected: dict[str, Result] = field(default_factory=dict)
    _marks: list[str] = field(default_factory=list)

    def mark(self, name: str, expected: Result) -> bytes:
        """A new attempt's mark."""
        self.expected[name] = expected
        self._marks.append(name)
        return _MARK % (len(self._marks) - 1)

    def names_in(self, data: bytes) -> set[str]:
        """Return the names whose marks are in the data."""
        found, at = set(), -1
        while (at := data.find(b"mark-", at + 1)) >= 0:
            found.add(self._marks[int(data[at + 5 : at + 10])])
        return found

    def send(self, packet: bytes) -> None:
        """Send an IP packet as the attacker."""
        self.raw.sendto(packet, (socket.inet_ntoa(packet[16:20]), 0))

    def send_frame(self, kind: int, body: bytes, to: bytes | None = None) -> None:
        """Send a frame as the attacker."""
        self.frames.send((to or self.gateway_mac) + b"\x06\x00\x00\x00\x00\x99" + struct.pack("!H", kind) + body)


async def stage(lab: Lab, budget: MemoryBudget, worker: str) -> Stage:
    """Private networks with an attacker, a neighbour who may reach the internet, and an endpoint without rules."""
    with contextlib.closing(NetlinkSocket.open(ROUTE)) as host:
        host.exchange([rtnetlink.address(rtnetlink.LOOPBACK, BRIDGE, 32)])
    subprocess.run(["nft", "-f", "-"], input=DOCKER, text=True, check=True)
    config = NetworkConfig(connections=MOST.connections, new_connections=MOST.new_connections, queries=MOST.queries)
    networks = await Networks.open(config, worker, budget.reserve_nowait)
    try:
        pool = await networks.pool(OwnNamespaces(), has_network=True)
        attacker, neighbour, stranger = [await pool.make() for _ in range(3)]
        for one, rules in ((attacker, RULES), (neighbour, ["internet"])):
            policy = await networks.policy(egress.parse(rules, most=len(RULES)))
            one.admit(policy)
            policy.close()
        assert attacker.policy is not None
        assert attacker.namespace is not None
        raw = lab.opened(attacker.namespace, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        raw.setsockopt(socket.IPPROTO_IP, _IP_HDRINCL, 1)
        frames = lab.opened(attacker.namespace, socket.AF_PACKET, socket.SOCK_RAW)
        frames.bind(("eth0", 0))
        return Stage(
            lab, networks, attacker, attacker.policy, neighbour, stranger, raw, frames, _gateway_mac(attacker.namespace)
        )
    except BaseException:
        await networks.aclose()
        raise


async def close(stage: Stage) -> None:
    """All of it."""
    for each in (stage.attacker, stage.neighbour, stage.stranger):
        each.close()
    await stage.networks.aclose()


def _gateway_mac(namespace: int) -> bytes:
    with network_namespaces.entered(namespace), open("/proc/thread-self/net/arp") as table:
        (line,) = [line for line in table if line.startswith(GATEWAY)]
    return bytes.fromhex(line.split()[3].replace(":", ""))
