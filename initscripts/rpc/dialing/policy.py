"""Which addresses a function's initscripts may connect to.

Asked twice: with the name when a guest connects, and with each address that the name stands for at the moment when the connection
is made to that very address, so a name that changes its address in between gains nothing. An address of IPv6 that carries one of
IPv4 is judged as both. A name is resolved only if a rule names it: questions carry data to the server that is asked. Owns the
rules.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection, Sequence
from functools import cache
from typing import NamedTuple

from sockd_initscripts.rpc.base import RpcFailed, denied
from sockd_initscripts.rpc.dialing.addresses import IpAddress, parse_ip
from sockd_initscripts.rpc.dialing.embedded import embedded

_ENTRY = re.compile(
    r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>[0-9]{1,5})(?:-(?P<last>[0-9]{1,5}))?)?|(?P<bare_v6>[0-9A-Fa-f:./]+)"
)
_NAME = re.compile(r"(?:\*\.)?[A-Za-z0-9._-]+")
DENIED = (
    *("169.254.169.254", "169.254.170.2", "fd00:ec2::254", "fd00:ec2::23"),
    *("100.100.100.200", "168.63.129.16", "192.0.0.192"),
    *("metadata.google.internal", "metadata.goog", "metadata", "instance-data", "instance-data.ec2.internal"),
    *("metadata.azure.internal", "metadata.azure.com", "metadata.tencentyun.com"),
)
"""The metadata services of clouds, which hand out credentials of the machine, and names that they have."""
INTERNET = "internet"
"""The word for a private network: every name, and every address that is not of a private range."""
HOST = "host"
"""The word for a private network, with a port: one of this host's loopback."""
GATEWAY, GATEWAY_NAME = ipaddress.IPv4Address("169.254.1.1"), "host.sockd.internal"
"""By which a private network reaches that."""
LOOPBACK = ipaddress.IPv4Address("127.0.0.1")
KNOWN = 256
"""Endpoints that a function's rules are remembered for."""
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class _Entry(NamedTuple):
    """One of what is allowed: a name, a name's suffix ('.example.org'), a network, or INTERNET; its first and last port."""

    name: str
    """Empty for a network and for INTERNET, which is none."""
    network: _Network | None
    ports: tuple[int, int]

    def covers(self, port: int) -> bool:
        return self.ports[0] <= port <= self.ports[1]


class EndpointPolicy:
    """The rules of one function."""

    def __init__(
        self,
        allowed: Sequence[str] | None = None,
        denied_ports: Sequence[int] = (),
        denied_endpoints: Sequence[str] = DENIED,
        private: Sequence[str] | None = None,
        host_ports: Collection[int] = (),
    ) -> None:
        """`allowed`: None is everything but link-local and multicast addresses; [] is nothing; entries are "host",
        "host:port", "*.suffix", "10.0.0.0/8:9000", "[::1]:80". `denied_ports`: the daemon's own; denied on every address of
        this host, whatever is allowed. `denied_endpoints`: entries that win over what is allowed. `private`: what a private
        network reaches, to which ports may be "first-last" and a host INTERNET or HOST: it must allow a connection, too.
        `host_ports`: those that HOST may name.

        Raises: ValueError for an entry that is none of these."""
        self._allowed = None if allowed is None else [_parse(entry) for entry in allowed]
        self._denied = _parse_all(tuple(denied_endpoints))
        rules = None if private is None else [_parse_private(entry) for entry in private]
        self._private = None if rules is None else [entry for entry in rules if entry.name != HOST]
        self._gateway_ports = {entry.ports[0] for entry in rules or () if entry.name == HOST} & set(host_ports)
        self._denied_ports = frozenset(denied_ports)
        self._known: set[tuple[str, str, int]] = set()
        """What was found to be allowed, by name, address if there is one, and port: rules never change, and looking costs a
        cold start 0.1 ms. Not what is said of the daemon's ports, since this host's addresses may change."""

    def address_of(self, host: str, port: int) -> IpAddress | None:
        """The address that a host's name says, or stands for in a private network; None: it has to be resolved."""
        is_gateway = port in self._gateway_ports and host in (str(GATEWAY), GATEWAY_NAME)
        return LOOPBACK if is_gateway else parse_ip(host)

    def check_name(self, host: str, port: int) -> None:
        """Before anything is resolved: refuse what no address could allow, and names that no rule names. Raises: RpcFailed
        (denied)."""
        if (host, "", port) in self._known:
            return
        ip = self.address_of(host, port)
        if ip is not None:
            self.check(host, ip, port)
        elif _names(self._denied, host, port):
            raise denied(f"{host}:{port} is what no initscript may reach (initscripts.denied)")
        elif self._private is not None and not _names(self._private, host, port):
            raise denied(f"{host}:{port} is not in the egress rules of its function")
        elif self._allowed is not None and not _names(self._allowed, host, port):
            raise denied(f"{host}:{port} is not an allowed endpoint; networks allow no name: say the name, too")
        self._remember(host, "", port)

    def check(self, host: str, ip: IpAddress | str, port: int) -> None:
        """May a connection that was asked for by the name `host` be made to this address? Raises: RpcFailed (denied)."""
        text = str(ip)
        if (host, text, port) in self._known:
            return
        address = parse_ip(text)
        if address is None:
            raise denied(f"{host}:{port} is at {ip}, which no initscript may reach")
        reached = [address, *embedded(address)]
        for each in reached:
            unreachable = each.is_link_local or each.is_multicast
            if unreachable or any(_permits(entry, host, each, port) for entry in self._denied):
                raise denied(f"{host}:{port} is at {ip}, which no initscript may reach")
        is_gateway = address == LOOPBACK and address != parse_ip(host) and address == self.address_of(host, port)
        called = GATEWAY if is_gateway else address
        if self._allowed is not None and not any(_permits(entry, host, called, port) for entry in self._allowed):
            raise denied(f"{host}:{port} at {ip} is not an allowed endpoint")
        if self._private is not None and not is_gateway and not self._is_outside(host, address, port):
            raise denied(f"{host}:{port} at {ip} is not in the egress rules of its function")
        if port in self._denied_ports and any(_is_local(each) for each in reached):
            raise denied(f"{host}:{port} is a port of this worker's own")
        self._remember(host, text, port)

    def allows(self, host: str, ip: IpAddress | str, port: int) -> bool:
        """`check` as a question."""
        try:
            self.check(host, ip, port)
        except RpcFailed:
            return False
        return True

    def _is_outside(self, host: str, address: IpAddress, port: int) -> bool:
        """May a private network reach it? No rule opens an address of this host, or one of IPv6."""
        entries = self._private or ()
        return (
            address.version == 4
            and any(_permits(entry, host, address, port) for entry in entries)
            and not _is_local(address)
        )

    def _remember(self, host: str, ip: str, port: int) -> None:
        if port in self._denied_ports:
            return
        if len(self._known) >= KNOWN:
            self._known.clear()
        self._known.add((host, ip, port))


@cache
def _parse_all(entries: tuple[str, ...]) -> list[_Entry]:
    """The worker's own, the same for each function. Raises: ValueError."""
    return [_parse(entry) for entry in entries]


def _names(entries: Sequence[_Entry], host: str, port: int) -> bool:
    return any(entry.network is None and entry.covers(port) and _is_named(entry.name, host) for entry in entries)


def _parse_private(entry: str) -> _Entry:
    parsed = _parse(entry)
    return parsed._replace(name="") if parsed.name == INTERNET else parsed


def _parse(entry: str) -> _Entry:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise ValueError(f"{entry!r} is not an endpoint: host, host:port, *.suffix or network/bits, with :port or not")
    host = match["v6"] or match["host"] or match["bare_v6"]
    first = int(match["port"] or 0)
    ports = (first, int(match["last"] or first)) if first else (0, 65535)
    if ports[1] > 65535:
        raise ValueError(f"{entry!r} has no valid port")
    try:
        return _Entry("", ipaddress.ip_network(host, strict=False), ports)
    except ValueError:
        if not _NAME.fullmatch(host):
            raise ValueError(f"{entry!r} is neither a name nor a network") from None
    return _Entry(host.removeprefix("*").lower().rstrip("."), None, ports)


def _is_named(name: str, host: str) -> bool:
    return host.endswith(name) and host != name if name.startswith(".") else name in (host, "")


def _permits(entry: _Entry, host: str, address: IpAddress, port: int) -> bool:
    if not entry.covers(port):
        return False
    if entry.network is not None:
        return address in entry.network
    return _is_named(entry.name, host) if entry.name else address.is_global


def _is_local(address: IpAddress) -> bool:
    """Does the kernel take connections to it for its own? It alone knows, and says so by letting a socket be bound."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True
