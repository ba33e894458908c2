"""Machines of a group: network namespaces of workers and of the database, each linked to the one that the test is in.

    worker 10.77.N.2 ── 10.77.N.1 test, HAProxy, router 10.77.M.1 ── 10.77.M.2 PostgreSQL

Owns the namespaces. A machine is cut off by nftables in its own namespace, as by a firewall: what is sent is lost, and nothing is
reset.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from sockd.linux.network import network_namespaces, rtnetlink
from sockd.linux.network.netlink import ROUTE, NetlinkSocket

_OUTSIDE, _INSIDE = 100, 10
"""Numbers of a wire's two ends; that of the first outside end."""
_MTU = 1500
_CUT = """
table inet cut {{
    chain in {{
        type filter hook input priority 0
        {arriving} drop
    }}
    chain out {{
        type filter hook output priority 0
        {leaving} drop
    }}
}}
"""


@dataclass(frozen=True)
class Machine:
    """A network namespace, and its address for the others."""

    namespace: int
    address: str

    def entered(self) -> AbstractContextManager[None]:
        """Have the calling thread on the machine for a block, and what it starts for ever."""
        return network_namespaces.entered(self.namespace)

    @contextmanager
    def cut(self, peer: Machine | None = None) -> Iterator[None]:
        """Lose all packets between this machine and another one, or all others, for the length of a block."""
        arriving, leaving = ('iifname != "lo"', 'oifname != "lo"')
        if peer is not None:
            arriving, leaving = f"ip saddr {peer.address}", f"ip daddr {peer.address}"
        self._nft("-f", "-", rules=_CUT.format(arriving=arriving, leaving=leaving))
        try:
            yield
        finally:
            self._nft("delete", "table", "inet", "cut")

    def _nft(self, *arguments: str, rules: str = "") -> None:
        with self.entered():
            subprocess.run(["nft", *arguments], input=rules, text=True, check=True)


@contextmanager
def machines(names: Sequence[str]) -> Iterator[dict[str, Machine]]:
    """Machines of these names; the calling thread is on the one between them for the block."""
    with ExitStack() as stack:
        between = network_namespaces.new()
        stack.callback(os.close, between)
        stack.enter_context(network_namespaces.entered(between))
        network_namespaces.bring_loopback_up()
        network_namespaces.set_sysctl("ipv4/ip_forward", 1)
        made = dict[str, Machine]()
        for number, name in enumerate(names, 1):
            namespace = network_namespaces.new()
            stack.callback(os.close, namespace)
            _link(namespace, number)
            made[name] = Machine(namespace, f"10.77.{number}.2")
        yield made


def _link(namespace: int, number: int) -> None:
    """Lay the wire of a machine to the calling thread's namespace, by which it reaches the others."""
    gateway, address = f"10.77.{number}.1", f"10.77.{number}.2"
    macs = bytes.fromhex(f"02aa0000{number:02x}01"), bytes.fromhex(f"02aa0000{number:02x}02")
    with network_namespaces.entered(namespace):
        there = NetlinkSocket.open(ROUTE)
    here = NetlinkSocket.open(ROUTE)
    with contextlib.closing(here), contextlib.closing(there):
        wire = rtnetlink.veth(
            *(f"wire{number}", "wire"),
            index=_OUTSIDE + number,
            peer_index=_INSIDE,
            mac=macs[0],
            peer_mac=macs[1],
            mtu=_MTU,
            namespace=namespace,
            up=True,
        )
        here.exchange([wire, rtnetlink.address(_OUTSIDE + number, gateway, 24)])
        there.exchange([rtnetlink.link_up(each) for each in (rtnetlink.LOOPBACK, _INSIDE)])
        there.exchange([rtnetlink.address(_INSIDE, address, 24), rtnetlink.default_route(_INSIDE, gateway)])
