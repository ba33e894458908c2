"""The router: a network namespace of the worker's own, between all private networks and the host.

Owns the namespace's descriptor, the thread that lives in it, a netlink socket and the uplink. The rules are all in here: the
host gets no more than one small table (`uplink`).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from functools import partial
from ipaddress import IPv4Network

from sockd.isolation.networks import ruleset
from sockd.isolation.networks.addresses import Addresses
from sockd.isolation.networks.answers import Answers
from sockd.isolation.networks.connection_shares import ConnectionShares
from sockd.isolation.networks.host_addresses import HostAddresses
from sockd.isolation.networks.namespace_thread import NamespaceThread, apply_rules
from sockd.isolation.networks.uplink import Uplink
from sockd.linux.network import network_namespaces, nfnetlink, rtnetlink
from sockd.linux.network.netlink import NETFILTER, ROUTE, Message, NetlinkSocket
from sockd.linux.network.nfnetlink import Element

FIRST_INDEX = 16
"""The first index of the links to endpoints; the loopback and the uplink have lower ones."""
_MOST_INDEX = (1 << 31) - 1
SYSCTLS = (
    ("ipv4/ip_forward", 1),
    ("ipv4/conf/all/rp_filter", 1),  # a sandbox sends under its own address, or nothing
    ("ipv4/icmp_ratelimit", 0),  # each refusal is sent at once, also the seventh in a second to one sandbox
    ("ipv4/icmp_msgs_burst", 1_000_000),  # and the fifty-first to all; before Linux 6.12 that is the host's to set
    ("ipv6/conf/all/disable_ipv6", 1),  # of the links to come, too
)
OPTIONAL = ("ipv6/", "ipv4/icmp_msgs_burst")
"""What a kernel may lack: IPv6, and a limit of one's own."""


class Router:
    """`open` makes it, `close` takes it down; both are called in the host's namespace."""

    def __init__(
        self,
        thread: NamespaceThread,
        namespace: int,
        rules: NetlinkSocket,
        uplink: Uplink,
        addresses: Addresses,
        host: HostAddresses,
        answers: Answers,
        shares: ConnectionShares,
    ) -> None:
        self.namespace = namespace
        self.uplink = uplink
        self.addresses = addresses
        self.answers = answers
        self._shares = shares
        self._thread = thread
        self._rules = rules
        self._host = host
        self._index = FIRST_INDEX

    @classmethod
    async def open(
        cls,
        worker: str,
        *,
        addresses: IPv4Network,
        uplink: IPv4Network,
        never: Sequence[IPv4Network],
        most: ruleset.Limits,
        shares: ConnectionShares,
    ) -> Router:
        """Args:
            worker: the worker's id; addresses: of endpoints; uplink: where the link to the host takes its own from.
            never: what no rule of a function opens, besides these two; most: of one sandbox.
            shares: divides connections among sandboxes, by the classes of `most`.
        Raises: FileNotFoundError: no nft(8); OSError: the kernel lacks something; BadConfig."""
        async with AsyncExitStack() as stack:
            thread = NamespaceThread()
            stack.callback(thread.close)
            namespace = await thread.run(network_namespaces.current)
            stack.callback(os.close, namespace)
            await thread.run(_set_up, ruleset.router([*never, addresses, uplink], most))
            rules = await thread.run(NetlinkSocket.open, NETFILTER)
            stack.callback(rules.close)
            answers = Answers(await thread.run(NetlinkSocket.open, NETFILTER))
            stack.push_async_callback(answers.aclose)
            host = await asyncio.to_thread(HostAddresses.open, partial(_change_host, rules))
            stack.callback(host.close)
            link = await asyncio.to_thread(Uplink.open, worker, namespace, uplink)
            link.rules.watch()
            host.watch()
            stack.pop_all()
            return cls(thread, namespace, rules, link, Addresses(addresses), host, answers, shares)

    async def apply(self, text: str) -> None:
        """Obey rules, all of them or none. Raises: OSError."""
        await self._thread.run(apply_rules, text)

    async def nameserver(self) -> socket.socket:
        """A socket that gets what functions send to their nameserver; the caller's. Raises: OSError."""
        return await self._thread.run(_nameserver)

    async def bound(self, port: int) -> socket.socket:
        """A socket that is bound to a port of the gateway, for functions; the caller's. Raises: OSError."""
        return await self._thread.run(_bound, port)

    async def connect(self, namespace: int, address: str) -> None:
        """Make a namespace an endpoint of this router: a link, an address, no function's rules, so that all it sends is refused.

        Raises: OSError; what was made goes with the namespace."""
        self._index = self._index + 1 if self._index < _MOST_INDEX else FIRST_INDEX
        # A copy, as the caller's may be closed while the thread is at it, if it is cancelled.
        copy = fcntl.fcntl(namespace, fcntl.F_DUPFD_CLOEXEC, 3)
        await self._thread.run(_connect, copy, self._index, address, self.uplink.mtu)

    def admit(self, address: str, chain: str) -> int:
        """Have what comes from an address judged by a function's chain from now on (some 15 µs).

        Returns: the connections that it is granted, for `dismiss`. Raises: OSError."""
        granted = self._shares.take(chain)
        chains = (ruleset.class_chain(granted), ruleset.host_chain(chain), chain)
        try:
            self._change(nfnetlink.add, [Element(address, each) for each in chains])
        except BaseException:
            self._shares.give_back(chain, granted)
            raise
        return granted

    def dismiss(self, address: str, chain: str, granted: int) -> None:
        """Refuse what comes from an address from now on (some 15 µs). Args: granted: what `admit` returned. Raises: OSError."""
        self._change(nfnetlink.delete, [Element(address)] * 3)
        self._shares.give_back(chain, granted)

    def _change(self, step: Callable[..., Message], elements: Sequence[Element]) -> None:
        """Add or delete the entries of an address. One acknowledgement is enough: all is obeyed, or nothing."""
        maps = (ruleset.CLASSES, ruleset.HOSTS, ruleset.POLICIES)
        *first, last = [step(ruleset.TABLE, name, [each]) for name, each in zip(maps, elements, strict=True)]
        self._rules.exchange(nfnetlink.batch(*map(nfnetlink.unacknowledged, first), last))

    def count(self, counter: str) -> int:
        """Packets that a counter of the router's table has counted. Raises: OSError."""
        return nfnetlink.packets(self._rules.ask(nfnetlink.read_counter(ruleset.TABLE, counter)))

    async def close(self) -> None:
        """Take it down; endpoints that are left reach nothing any more. Raises: OSError."""
        self._host.close()
        await self.answers.aclose()
        await self.uplink.rules.unwatch()
        try:
            await asyncio.to_thread(self.uplink.close)
        finally:
            self._rules.close()
            await asyncio.to_thread(self._thread.close)
            os.close(self.namespace)


def _set_up(rules: str) -> None:
    for name, value in SYSCTLS:
        try:
            network_namespaces.set_sysctl(name, value)
        except FileNotFoundError:
            if not name.startswith(OPTIONAL):
                raise
    apply_rules(rules)


def _change_host(rules: NetlinkSocket, new: Collection[str], gone: Collection[str]) -> None:
    """Change the set of the host's addresses. Raises: OSError; unchanged."""
    steps = [(nfnetlink.add, new), (nfnetlink.delete, gone)]
    messages = [step(ruleset.TABLE, ruleset.HOST, [*map(Element, each)]) for step, each in steps if each]
    if messages:
        rules.exchange(nfnetlink.batch(*messages))


def _nameserver() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        sock.bind((ruleset.GATEWAY, 53))
    except BaseException:
        sock.close()
        raise
    return sock


def _bound(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((ruleset.GATEWAY, port))
    except BaseException:
        sock.close()
        raise
    return sock


def _connect(namespace: int, index: int, address: str, mtu: int) -> None:
    """Closes `namespace`."""
    outer, inner = _macs(index)
    try:
        _make_link(namespace, index, address, mtu, outer, inner)
    finally:
        os.close(namespace)


def _make_link(namespace: int, index: int, address: str, mtu: int, outer: bytes, inner: bytes) -> None:
    with network_namespaces.entered(namespace):
        # Before there is a link: what is born later has no IPv6, and what a function sends there fails at once.
        _without_ipv6()
        inside = NetlinkSocket.open(ROUTE)
    try:
        outside = NetlinkSocket.open(ROUTE)
        try:
            outside.exchange(_outer_end(namespace, index, address, mtu, outer, inner))
        finally:
            outside.close()
        inside.exchange(_inner_end(address, outer))
    finally:
        inside.close()


def _without_ipv6() -> None:
    try:
        network_namespaces.set_sysctl("ipv6/conf/default/disable_ipv6", 1)
    except FileNotFoundError:
        return


def _outer_end(namespace: int, index: int, address: str, mtu: int, outer: bytes, inner: bytes) -> list[Message]:
    return [
        rtnetlink.veth(
            f"sd{index}",
            "eth0",
            index=index,
            peer_index=2,
            mac=outer,
            peer_mac=inner,
            mtu=mtu,
            namespace=namespace,
            up=True,
        ),
        rtnetlink.link_route(index, address),
        rtnetlink.neighbour(index, address, inner),
    ]


def _inner_end(address: str, outer: bytes) -> list[Message]:
    return [
        rtnetlink.link_up(2),
        rtnetlink.address(2, address, 32),
        rtnetlink.link_route(2, ruleset.GATEWAY),
        rtnetlink.neighbour(2, ruleset.GATEWAY, outer),
        rtnetlink.default_route(2, ruleset.GATEWAY),
    ]


def _macs(index: int) -> tuple[bytes, bytes]:
    """Locally administered addresses of both ends of a link."""
    return b"\x02\x00" + index.to_bytes(4), b"\x06\x00" + index.to_bytes(4)
