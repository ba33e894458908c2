"""The link between the router and the host: a veth pair, a network of two addresses, and a table in the host's namespace.

Owns the host's table by its `HostRules`; the link goes with the router's namespace. A SIGKILL leaves the table, which `open`
removes, and which lets nothing pass that the host would not let pass without it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from sockd.base.errors import BadConfig
from sockd.isolation.networks import ruleset
from sockd.isolation.networks.host_rules import HostRules
from sockd.isolation.networks.namespace_thread import apply_rules
from sockd.linux.network import network_namespaces, nfnetlink, rtnetlink
from sockd.linux.network.netlink import NETFILTER, ROUTE, Message, NetlinkSocket

PREFIX = 30
_INDEX = 2
"""The uplink's number in the router's namespace."""
_DEFAULT_MTU = 1500
_LEAST_MTU = 576
_SIOCGIFMTU = 0x8921
_ROUTES = Path("/proc/thread-self/net/route")
_MACS = bytes.fromhex("02736f636b01"), bytes.fromhex("02736f636b02")


class Uplink:
    """`open` is called in the host's namespace, `close` as well."""

    rules: HostRules

    def __init__(self, worker: str, address: str, mtu: int) -> None:
        self.worker = worker
        self.link = link_of(worker)
        self.address = address
        """The router's, which the host sees as the source of everything."""
        self.mtu = mtu

    @classmethod
    def open(cls, worker: str, router: int, candidates: IPv4Network) -> Uplink:
        """Remove what a killed worker of this id left, and make the link.

        Args:
            worker: its id, hexadecimal; router: the router's namespace.
            candidates: where a network of four addresses is taken that no route of the host is for.
        Raises: BadConfig: there is none; OSError."""
        remove_leftovers(worker)
        ours, theirs = _pick(worker, candidates, list(_routed()))
        uplink = cls(worker, str(theirs), _mtu())
        host = network_namespaces.current()
        try:
            with network_namespaces.entered(router):
                _sent_to_routes([*uplink._pair(host), *uplink._router_end(str(ours))])
        finally:
            os.close(host)
        try:
            uplink._host_end(str(ours))
            table = table_of(worker)
            text = ruleset.host if judges_by_destination() else ruleset.host_without_fib
            uplink.rules = HostRules.open(table, text(table, uplink.link, uplink.address), uplink.cut)
        except BaseException:
            remove_leftovers(worker)
            raise
        return uplink

    def close(self) -> None:
        """Remove table and link. Raises: OSError."""
        remove_leftovers(self.worker)

    def cut(self) -> None:
        """Take the link down: nothing passes any more. Raises: OSError."""
        _sent_to_routes([rtnetlink.link_down(socket.if_nametoindex(self.link))])

    def _pair(self, host: int) -> list[Message]:
        outer, inner = _MACS
        return [
            rtnetlink.veth(
                ruleset.UPLINK,
                self.link,
                index=_INDEX,
                peer_index=0,
                mac=inner,
                peer_mac=outer,
                mtu=self.mtu,
                namespace=host,
                up=True,
            )
        ]

    def _router_end(self, gateway: str) -> list[Message]:
        return [
            rtnetlink.link_up(rtnetlink.LOOPBACK),
            rtnetlink.address(rtnetlink.LOOPBACK, ruleset.GATEWAY, 32),
            rtnetlink.address(_INDEX, self.address, PREFIX),
            rtnetlink.neighbour(_INDEX, gateway, _MACS[0]),
            rtnetlink.default_route(_INDEX, gateway),
        ]

    def _host_end(self, gateway: str) -> None:
        index = socket.if_nametoindex(self.link)
        network_namespaces.set_sysctl(f"ipv4/conf/{self.link}/rp_filter", 1)
        with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
            network_namespaces.set_sysctl(f"ipv6/conf/{self.link}/disable_ipv6", 1)
        _sent_to_routes(
            [
                rtnetlink.address(index, gateway, PREFIX),
                rtnetlink.neighbour(index, self.address, _MACS[1]),
                rtnetlink.link_up(index),
            ]
        )


def judges_by_destination() -> bool:
    """Whether this kernel can tell the host's own addresses before it translates destinations; nothing is changed."""
    try:
        apply_rules(ruleset.host("sockd-check", "check", "198.18.0.1"), check=True)
    except OSError:
        return False
    return True


def link_of(worker: str) -> str:
    """The name of a worker's link in the host's namespace; 15 characters are all that the kernel takes."""
    return f"sd{worker[:13]}"


def table_of(worker: str) -> str:
    """The name of its table there."""
    return f"sockd-{worker}"


def remove_leftovers(worker: str) -> None:
    """Remove a worker's link and table from the calling thread's namespace, if they are there. Raises: OSError."""
    for family, removal, absent in (
        (NETFILTER, nfnetlink.batch(nfnetlink.delete_table(table_of(worker))), errno.ENOENT),
        (ROUTE, [rtnetlink.delete_link(link_of(worker))], errno.ENODEV),
    ):
        _obeyed_or_absent(family, removal, absent)


def _sent_to_routes(messages: Sequence[Message]) -> None:
    with contextlib.closing(NetlinkSocket.open(ROUTE)) as sock:
        sock.exchange(messages)


def _obeyed_or_absent(family: int, messages: Sequence[Message], absent: int) -> None:
    sock = NetlinkSocket.open(family)
    try:
        sock.exchange(messages)
    except OSError as error:
        if error.errno != absent:
            raise
    finally:
        sock.close()


def _pick(worker: str, candidates: IPv4Network, routed: Sequence[IPv4Network]) -> tuple[IPv4Address, IPv4Address]:
    """POLICY: the first network of four, from a place that the worker's id gives, that meets no route of the host."""
    count = candidates.num_addresses >> (32 - PREFIX)
    start = int(worker, 16)
    for step in range(count):
        first = int(candidates.network_address) + (start + step) % count * 4
        network = IPv4Network((first, PREFIX))
        if not any(network.overlaps(each) for each in routed):
            return network[1], network[2]
    raise BadConfig(
        f"the host has routes for all of {candidates}: set network.uplink to a network that it has no route for"
    )


def _routed() -> Iterator[IPv4Network]:
    """What the host has routes for, the default route left out."""
    for line in _ROUTES.read_text().splitlines()[1:]:
        fields = line.split()
        destination, mask = (socket.ntohl(int(fields[column], 16)) for column in (1, 7))
        if mask:
            yield IPv4Network((destination & mask, mask.bit_count()))


def _mtu() -> int:
    """Return the MTU of the link that the host's default route leads to, so that functions' packets need not be fragmented
    there."""
    for line in _ROUTES.read_text().splitlines()[1:]:
        link, destination, *_ = line.split()
        if int(destination, 16) == 0:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
                answer = fcntl.ioctl(sock, _SIOCGIFMTU, struct.pack("16si12x", link.encode(), 0))
                return min(max(int(struct.unpack_from("=16si", answer)[1]), _LEAST_MTU), 65535)
    return _DEFAULT_MTU
