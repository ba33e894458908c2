"""What a function could send to get past its rules, and what becomes of it.

A run builds a lab with private networks, has an attacker who is root in its namespace (which no sandbox is) send one marked
packet for each attempt, and looks at the internet's link, another sandbox's, and at what the host and the router took in for
themselves: where did each mark arrive, and did the attacker get an error at once if it did not?
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from sockd.base.config import NetworkConfig
from sockd.isolation.networks import egress, ruleset
from sockd.isolation.networks.endpoint import Endpoint
from sockd.isolation.networks.networks import Networks
from sockd.isolation.networks.policy import Policy
from sockd.isolation.networks.ruleset import GATEWAY
from sockd.isolation.sandbox.memory_budget import MemoryBudget
from sockd.linux.network import network_namespaces, nfnetlink, rtnetlink
from sockd.linux.network.netlink import NETFILTER, ROUTE, NetlinkSocket
from tests.support.network_lab import (
    HOST,
    OTHER_PORT,
    OTHER_PUBLIC,
    PORT,
    PRIVATE,
    PUBLIC,
    Lab,
    OwnNamespaces,
    checksum,
    ip_packet,
    tcp_segment,
    udp_datagram,
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
SYN, NOTHING = 2, 0
UDP, TCP, ICMP = 17, 6, 1
_IP_HDRINCL = 3
_REFUSALS = b"\x03\x0d", b"\x03\x00"
"""Destination unreachable: communication administratively prohibited, and network unreachable for what goes beyond a limit."""
_IPV4_TYPE = b"\x08\x00"
_MARK = b"mark-%05d."
_VLAN, _MPLS, _ARP, _IPV6, _IPV4 = 0x8100, 0x8847, 0x0806, 0x86DD, 0x0800


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


def attempt_everything(stage: Stage, *, until_wrong: bool = False) -> dict[str, Result]:
    """Send it all; what became of each. Args: until_wrong: look no further when something arrived that should not."""
    assert stage.networks.router is not None
    router = stage.networks.router.namespace
    assert stage.neighbour.namespace is not None and stage.attacker.namespace is not None
    sinks = {
        "internet": _link_sink(stage.lab, stage.lab.internet, "lan0"),
        "neighbour": _link_sink(stage.lab, stage.neighbour.namespace, "eth0"),
        **{f"host {protocol}": _own_sink(stage.lab, stage.lab.host, protocol) for protocol in (UDP, TCP, ICMP, 4, 47)},
        **{f"router {protocol}": _own_sink(stage.lab, router, protocol) for protocol in (UDP, TCP, ICMP, 4, 47)},
    }
    back = _link_sink(stage.lab, stage.attacker.namespace, "eth0")
    stranger_back = _link_sink(stage.lab, stage.stranger.namespace or -1, "eth0")
    with _on_one_processor():
        for send in ATTEMPTS:
            send(stage)
        arrived, refused = _collect(stage, list(sinks.values()), [back, stranger_back], until_wrong)
    return {name: Result(name in arrived, name in refused) for name in {**stage.expected, **dict.fromkeys(arrived)}}


def _collect(
    stage: Stage, sinks: list[socket.socket], backs: list[socket.socket], until_wrong: bool
) -> tuple[set[str], set[str]]:
    """Which marks came where, until all that should have come has."""
    arrived: set[str] = set()
    refused: set[str] = set()
    should_arrive = {name for name, result in stage.expected.items() if result.arrived}
    should_be_refused = {name for name, result in stage.expected.items() if result.refused}
    by_fd = {each.fileno(): each for each in (*sinks, *backs)}
    poller = select.poll()
    for fd in by_fd:
        poller.register(fd, select.POLLIN)
    deadline_s = time.monotonic() + stage.wait_s
    while not (until_wrong and arrived - should_arrive):
        is_complete = should_arrive <= arrived and should_be_refused <= refused
        ready = poller.poll(0 if is_complete else max(0, int((deadline_s - time.monotonic()) * 1000)))
        if not ready:
            break
        for sock in (by_fd[fd] for fd, _ in ready):
            data, address = sock.recvfrom(1 << 16)
            if sock.family == socket.AF_PACKET and address[2] == socket.PACKET_OUTGOING:
                continue
            if sock in backs:
                refused |= stage.names_in(data) if _is_refusal(data) else set()
            else:
                arrived |= stage.names_in(data)
                if sock is sinks[0] and data[12:14] == _IPV4_TYPE and data[26:30] != socket.inet_aton(HOST):
                    arrived |= {f"{name}, under another address than the host's" for name in stage.names_in(data)}
    return arrived, refused


def _is_refusal(frame: bytes) -> bool:
    return frame[12:14] == _IPV4_TYPE and frame[23] == ICMP and frame[34:36] in _REFUSALS


@contextlib.contextmanager
def _on_one_processor() -> Iterator[None]:
    """Packets are handled in the order in which they are sent."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _link_sink(lab: Lab, namespace: int, link: str) -> socket.socket:
    return lab.capture(namespace, link)


def _own_sink(lab: Lab, namespace: int, protocol: int) -> socket.socket:
    """What the namespace takes in for itself: raw sockets get it behind the input hook."""
    return lab.opened(namespace, socket.AF_INET, socket.SOCK_RAW, protocol)


# -- attempts: each sends, under a mark


Attempt = Callable[[Stage], None]


def _udp(name: str, to: str, port: int, expected: Result) -> Attempt:
    def send(stage: Stage) -> None:
        source = stage.attacker.address
        stage.send(ip_packet(source, to, UDP, udp_datagram(port, stage.mark(name, expected))))

    return send


def _tcp(name: str, to: str, port: int, expected: Result, *, flags: int = SYN) -> Attempt:
    def send(stage: Stage) -> None:
        source = stage.attacker.address
        stage.send(ip_packet(source, to, TCP, tcp_segment(source, to, port, flags, stage.mark(name, expected))))

    return send


def _both(name: str, to: str, port: int, expected: Result) -> list[Attempt]:
    return [_udp(f"UDP to {name}", to, port, expected), _tcp(f"TCP to {name}", to, port, expected)]


def _protocol(name: str, protocol: int, expected: Result = REFUSED) -> Attempt:
    """Args: expected: no refusal is reported of protocols whose checksum is not ours."""

    def send(stage: Stage) -> None:
        head, mark = b"\x08\0", stage.mark(f"{name} to where all ports are open", expected)
        body = head + struct.pack("!H", checksum(head + b"\0\0\0\1\0\1" + mark)) + b"\0\1\0\1" + mark
        stage.send(ip_packet(stage.attacker.address, OTHER_PUBLIC, protocol, body))

    return send


def _spoofed(name: str, source: Callable[[Stage], str]) -> Attempt:
    def send(stage: Stage) -> None:
        mark = stage.mark(f"UDP under {name}", LOST)
        stage.send(ip_packet(source(stage), PUBLIC, UDP, udp_datagram(443, mark)))

    return send


def _fragments(name: str, port: int, expected: Result) -> Attempt:
    def send(stage: Stage) -> None:
        first = stage.mark(f"first fragment to {name}", expected)
        second = stage.mark(f"last fragment to {name}", expected)
        head = struct.pack("!HHHH", 5353, port, 8 + 24 + len(second), 0)
        body = (head + first).ljust(32, b".")
        number = len(stage.expected)
        source = stage.attacker.address
        stage.send(ip_packet(source, PRIVATE, UDP, body, fragment=0x2000, number=number))
        stage.send(ip_packet(source, PRIVATE, UDP, second, fragment=len(body) // 8, number=number))

    return send


def _frame(name: str, kind: int, before: bytes = b"", to: bytes | None = None) -> Attempt:
    """An allowed packet as the body of another kind of frame."""

    def send(stage: Stage) -> None:
        mark = stage.mark(f"{name} frame", LOST)
        packet = ip_packet(stage.attacker.address, PRIVATE, UDP, udp_datagram(PORT, mark))
        stage.send_frame(kind, before + packet, to)

    return send


def _to_many(stage: Stage) -> None:
    """Flows until no more are tracked for this sandbox."""
    source, last = stage.attacker.address, 3 * MOST.connections
    for number in range(last):
        stage.send(ip_packet(source, PUBLIC, UDP, udp_datagram(PORT, b"flow", source_port=10_000 + number)))
    mark = stage.mark("UDP with too many connections", REFUSED)
    stage.send(ip_packet(source, PUBLIC, UDP, udp_datagram(PORT, mark, source_port=10_000 + last)))


def _many_queries(stage: Stage) -> None:
    """Queries to the resolver until one is dropped."""
    source = stage.attacker.address
    for _ in range(3 * MOST.queries):
        stage.send(ip_packet(source, GATEWAY, UDP, udp_datagram(53, b"query")))
    stage.send(ip_packet(source, GATEWAY, UDP, udp_datagram(53, stage.mark("UDP with too many queries", LOST))))


def _without_rules(stage: Stage) -> None:
    assert stage.stranger.namespace is not None
    with network_namespaces.entered(stage.stranger.namespace), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(stage.mark("UDP of an endpoint without rules", REFUSED), (PUBLIC, PORT))


def _to_the_neighbour(stage: Stage) -> None:
    for send in _both("another sandbox", stage.neighbour.address, EVERYWHERE, REFUSED):
        send(stage)


def _to_the_router(stage: Stage) -> None:
    assert stage.networks.router is not None
    for send in _both("the router", stage.networks.router.uplink.address, EVERYWHERE, REFUSED):
        send(stage)


def _to_a_new_address(stage: Stage) -> None:
    """Before the worker has read the kernel's notice of it."""
    with contextlib.closing(NetlinkSocket.open(ROUTE)) as host:
        host.exchange([rtnetlink.address(rtnetlink.LOOPBACK, NEWEST, 32)])
    own = _both("the host's newest address", NEWEST, ON_THE_INTERNET, REFUSED)
    published = _both("a port that the host publishes at its newest address", NEWEST, PUBLISHED, REFUSED)
    for send in (*own, *published):
        send(stage)


def _after_a_flush(stage: Stage) -> None:
    """Before the worker has put its table back."""
    subprocess.run(["nft", "flush", "ruleset"], check=True)
    for send in _both("the host after a flush", HOST, ON_THE_INTERNET, REFUSED):
        send(stage)


ATTEMPTS: list[Attempt] = [
    *_both("an allowed network", PRIVATE, PORT, PASSES),
    *_both("an allowed address", PUBLIC, PORT, PASSES),
    *_both("an address whose ports are all open", OTHER_PUBLIC, 1, PASSES),
    *_both("the internet", PUBLIC, ON_THE_INTERNET, PASSES),
    *_both("a private address by a rule for all", "192.168.7.7", EVERYWHERE, PASSES),
    *_both("another port", PRIVATE, OTHER_PORT, REFUSED),
    *_both("an address beside the allowed one", "9.9.9.8", PORT, REFUSED),
    *_both("DNS of somebody else", PUBLIC, 53, REFUSED),
    *_both("10.0.0.0/8, which is not the internet", "10.1.2.3", ON_THE_INTERNET, REFUSED),
    *_both("172.16.0.0/12, which is not the internet", "172.20.1.1", ON_THE_INTERNET, REFUSED),
    *_both("192.168.0.0/16, which is not the internet", "192.168.7.7", ON_THE_INTERNET, REFUSED),
    *_both("192.0.0.0/24, which is not the internet", "192.0.0.8", ON_THE_INTERNET, REFUSED),
    *_both("192.0.2.0/24, which is not the internet", "192.0.2.2", ON_THE_INTERNET, REFUSED),
    *_both("198.51.100.0/24, which is not the internet", "198.51.100.4", ON_THE_INTERNET, REFUSED),
    *_both("203.0.113.0/24, which is not the internet", "203.0.113.4", ON_THE_INTERNET, REFUSED),
    *_both("169.254.0.0/16: metadata", "169.254.169.254", EVERYWHERE, REFUSED),
    *_both("100.100.100.200: metadata", "100.100.100.200", EVERYWHERE, REFUSED),
    *_both("168.63.129.16: metadata", "168.63.129.16", EVERYWHERE, REFUSED),
    *_both("192.0.0.192: metadata", "192.0.0.192", EVERYWHERE, REFUSED),
    *_both("0.0.0.0/8", "0.1.2.3", EVERYWHERE, REFUSED),
    *_both("240.0.0.0/4", "240.1.2.3", EVERYWHERE, REFUSED),
    *_both("100.64.0.0/10: no sandbox", "100.99.9.9", EVERYWHERE, REFUSED),
    *_both("198.18.0.0/15: no worker's link", "198.19.1.1", EVERYWHERE, REFUSED),
    *_both("the host's public address", HOST, ON_THE_INTERNET, REFUSED),
    *_both("a port that the host publishes", HOST, PUBLISHED, REFUSED),
    *_both("the host's bridge", BRIDGE, EVERYWHERE, REFUSED),
    *_both("the gateway", GATEWAY, EVERYWHERE, REFUSED),
    _udp("UDP to the resolver", GATEWAY, 53, PASSES),
    _tcp("TCP to the resolver", GATEWAY, 53, REFUSED),
    _udp("UDP to multicast", "224.0.0.251", EVERYWHERE, LOST),
    _to_the_neighbour,
    _to_the_router,
    _without_rules,
    *[_protocol(name, number) for name, number in (("ICMP", 1), ("IGMP", 2), ("IP in IP", 4), ("IPv6 in IP", 41))],
    *[_protocol(name, number) for name, number in (("GRE", 47), ("ESP", 50), ("an unknown protocol", 253))],
    *[_protocol(name, number, LOST) for name, number in (("SCTP", 132), ("UDP-Lite", 136))],
    _tcp("TCP with no flags to an allowed network", PRIVATE, PORT, LOST, flags=NOTHING),
    _spoofed("another sandbox's address", lambda stage: stage.neighbour.address),
    _spoofed("the host's address", lambda stage: HOST),
    _spoofed("the gateway's address", lambda stage: GATEWAY),
    _spoofed("nobody's address", lambda stage: "100.64.200.200"),
    _fragments("an allowed port", PORT, PASSES),
    _fragments("another port", OTHER_PORT, REFUSED),
    _frame("a VLAN's", _VLAN, b"\0\x07\x08\0"),
    _frame("an MPLS", _MPLS, b"\0\0\x01\x40"),
    _frame("an ARP", _ARP),
    _frame("an unknown", 0x1234),
    _frame("somebody else's", _IPV4, to=b"\x02\x00\x00\x00\xff\xff"),
    _frame("an IPv6", _IPV6, bytes.fromhex("6000000000401140" + "00" * 15 + "02" + "ff02" + "00" * 13 + "01")),
    _to_a_new_address,
    _many_queries,
    _to_many,
    _after_a_flush,
]


# -- connections, by the sockets that functions have


def talk(stage: Stage) -> dict[str, bool]:
    """What happens on connections, as far as rules decide on it."""
    facts: dict[str, bool] = {}
    lab, namespace = stage.lab, stage.attacker.namespace
    assert namespace is not None
    listener = lab.listen(lab.internet, "0.0.0.0", PORT)
    listener.settimeout(stage.wait_s)
    with lab.tcp(namespace) as ours:
        ours.settimeout(stage.wait_s)
        facts["an allowed connection is made"] = ours.connect_ex((PRIVATE, PORT)) == 0
        if facts["an allowed connection is made"]:
            theirs, _ = listener.accept()
            with theirs:
                theirs.settimeout(stage.wait_s)
                ours.sendall(b"question")
                facts["it is answered"] = _received(theirs) == b"question" and theirs.send(b"answer") == 6
                facts["the answer arrives"] = _received(ours) == b"answer"
    with lab.tcp(namespace) as ours:
        ours.settimeout(stage.wait_s)
        facts["a refused connection fails at once"] = ours.connect_ex((PRIVATE, OTHER_PORT)) == errno.EHOSTUNREACH
    facts["connections that end are limited as well"] = _are_limited(stage, listener)
    closed = lab.udp(namespace)
    closed.settimeout(stage.wait_s)
    closed.connect((PUBLIC, PORT))
    closed.send(b"nobody is there")
    try:
        closed.recv(1)
    except OSError as error:
        facts["an error from the other side arrives"] = error.errno == errno.ECONNREFUSED
    listener.close()
    facts["queries and their answers are not tracked"] = not _are_tracked(stage)
    return facts


def _are_tracked(stage: Stage) -> bool:
    """Whether a query to the gateway, or its answer, becomes a tracked connection of the router."""
    assert stage.networks.router is not None and stage.attacker.namespace is not None
    router = stage.networks.router.namespace
    before = _tracked(router)
    with stage.lab.receive(router, GATEWAY, 53) as gateway, stage.lab.udp(stage.attacker.namespace) as ours:
        for sock in (gateway, ours):
            sock.settimeout(stage.wait_s)
        ours.connect((GATEWAY, 53))
        ours.send(b"query")
        try:
            _, asker = gateway.recvfrom(100)
            gateway.sendto(b"answer", asker)
            ours.recv(100)
        except OSError:  # on a stage on which something is wrong on purpose
            return True
        return _tracked(router) > before


def _tracked(namespace: int) -> int:
    with network_namespaces.entered(namespace):
        return int(network_namespaces.sysctl("netfilter/nf_conntrack_count"))


def _are_limited(stage: Stage, listener: socket.socket) -> bool:
    """Whether the neighbour is refused one connection at last, if each ends before the next one."""
    assert stage.neighbour.namespace is not None
    for number in range(MOST.new_connections + 100):
        with stage.lab.tcp(stage.neighbour.namespace) as ours:
            ours.settimeout(stage.wait_s)
            status = ours.connect_ex((PUBLIC, PORT))
            if status:
                return status == errno.ENETUNREACH and number >= MOST.new_connections
            theirs, _ = listener.accept()
            theirs.close()
            ours.recv(1)
    return False


async def talk_by_name(stage: Stage) -> dict[str, bool]:
    """What happens on a connection to what a name stands for, when that time is over, and when the rules change."""
    assert stage.attacker.namespace is not None
    facts: dict[str, bool] = {}
    lab, policy = stage.lab, stage.policy
    listener = lab.listen(lab.internet, PUBLIC, BY_NAME)
    ours, late = lab.tcp(stage.attacker.namespace), lab.tcp(stage.attacker.namespace)
    ours.settimeout(stage.wait_s)
    late.settimeout(stage.wait_s)
    await policy.open_name(NAME, [IPv4Address(PUBLIC)], 60)
    facts["what a name stands for is reached"] = ours.connect_ex((PUBLIC, BY_NAME)) == 0
    _forget(stage)
    facts["then it is not reached any more"] = late.connect_ex((PUBLIC, BY_NAME)) == errno.EHOSTUNREACH
    if facts["what a name stands for is reached"]:
        theirs, _ = listener.accept()
        with theirs:
            theirs.settimeout(stage.wait_s)
            facts["connections that there are go on"] = _sent(ours, b"question") and _received(theirs) == b"question"
            await policy.change(egress.parse([], most=1))
            facts["other rules end them at once"] = _sent(ours, b"one more") and _reset(ours)
            await policy.change(egress.parse(RULES, most=len(RULES)))
    return facts


async def talk_with_the_host(stage: Stage) -> dict[str, bool]:
    """What happens on a connection to a port of the host, to a listener of the router, and when the rules change."""
    assert stage.networks.router is not None
    assert stage.attacker.namespace is not None and stage.neighbour.namespace is not None
    router, facts = stage.networks.router, dict[str, bool]()
    listener = stage.lab.listen(router.namespace, GATEWAY, OF_THE_HOST)
    ours, theirs = stage.lab.tcp(stage.attacker.namespace), stage.lab.tcp(stage.neighbour.namespace)
    for sock in (listener, ours, theirs):
        sock.settimeout(stage.wait_s)
    before = router.count(ruleset.PROXIED)
    facts["a port of the host is reached"] = ours.connect_ex((GATEWAY, OF_THE_HOST)) == 0
    facts["this is counted"] = router.count(ruleset.PROXIED) == before + 1
    facts["others do not reach it"] = theirs.connect_ex((GATEWAY, OF_THE_HOST)) == errno.EHOSTUNREACH
    if facts["a port of the host is reached"]:
        with listener.accept()[0] as accepted:
            accepted.settimeout(stage.wait_s)
            facts["it is answered"] = _sent(accepted, b"answer") and _received(ours) == b"answer"
            await stage.policy.change(egress.parse([], most=1))
            facts["other rules end it at once"] = _sent(ours, b"one more") and _reset(ours)
            await stage.policy.change(egress.parse(RULES, most=len(RULES)))
    listener.close()
    return facts


def _forget(stage: Stage) -> None:
    """The time of what a name stands for is over."""
    assert stage.networks.router is not None
    (names,) = stage.policy._now.sets()
    with network_namespaces.entered(stage.networks.router.namespace):
        rules = NetlinkSocket.open(NETFILTER)
    with contextlib.closing(rules):
        rules.exchange(nfnetlink.batch(nfnetlink.delete(ruleset.TABLE, names, [nfnetlink.Element(PUBLIC)])))


def _sent(sock: socket.socket, data: bytes) -> bool:
    try:
        return sock.send(data) == len(data)
    except OSError:
        return False


def _reset(sock: socket.socket) -> bool:
    try:
        sock.recv(1)
    except OSError as error:
        return error.errno == errno.ECONNRESET
    return False


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(100)
    except OSError:
        return b""
