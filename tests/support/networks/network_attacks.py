"""What a function could send to get past its rules, and what becomes of it.

A run builds a lab with private networks, has an attacker who is root in its namespace (which no sandbox is) send one marked
packet for each attempt, and looks at the internet's link, another sandbox's, and at what the host and the router took in for
themselves: where did each mark arrive, and did the attacker get an error at once if it did not?
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator

from sockd.isolation.networks.ruleset import GATEWAY
from sockd.linux.network import network_namespaces, rtnetlink
from sockd.linux.network.netlink import ROUTE, NetlinkSocket
from tests.support.networks.network_lab import (
    HOST,
    OTHER_PORT,
    OTHER_PUBLIC,
    PORT,
    PRIVATE,
    PUBLIC,
    Lab,
    checksum,
    ip_packet,
    tcp_segment,
    udp_datagram,
)
from tests.support.networks.network_stage import (
    BRIDGE,
    EVERYWHERE,
    LOST,
    MOST,
    NEWEST,
    ON_THE_INTERNET,
    PASSES,
    PUBLISHED,
    REFUSED,
    Result,
    Stage,
)

SYN, NOTHING = 2, 0
UDP, TCP, ICMP = 17, 6, 1
_REFUSALS = b"\x03\x0d", b"\x03\x00"
"""Destination unreachable: communication administratively prohibited, and network unreachable for what goes beyond a limit."""
_IPV4_TYPE = b"\x08\x00"
_VLAN, _MPLS, _ARP, _IPV6, _IPV4 = 0x8100, 0x8847, 0x0806, 0x86DD, 0x0800


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
