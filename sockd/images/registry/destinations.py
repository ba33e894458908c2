"""Destinations: which addresses an import connects to when a registry names them, in a realm or in a redirect.

A registry is written by a stranger, and an import runs on the host's network: without this, a registry could have GETs sent to
services on the host's loopback, in its private network, or at its cloud's metadata address. The registry that the deployer
named is connected to wherever it is, except at link-local and metadata addresses. What the registry names is connected to if it
is the same host and port, or a public address over HTTPS. The address that is judged is the one that is connected to: a name
is resolved once, so that a second answer of DNS cannot differ. Configured hosts are not judged.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from sockd.base.config import NetworkConfig
from sockd.base.errors import BadImage
from sockd.images.registry.origin import Origin, is_loopback
from sockd.linux.network.own_addresses import own_addresses

Address = IPv4Address | IPv6Address
_HTTPS_PORT = 443
_METADATA = tuple(map(ipaddress.ip_network, NetworkConfig().host_deny))
"""Link-local addresses and the clouds' metadata services."""
_SPECIAL_IPV4 = tuple(
    IPv4Network(each)
    for each in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
        *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    )
)
"""IANA's special-purpose addresses (RFC 6890). `ipaddress.is_global` differs between patch releases of Python."""
_GLOBAL_IPV6 = IPv6Network("2000::/3")
_SPECIAL_IPV6 = tuple(IPv6Network(each) for each in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
"""Within the global ones: protocol assignments with Teredo, documentation, 6to4."""
_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")
"""An interface identifier that begins so carries an IPv4 address (RFC 5214)."""


class Destinations:
    """The rules of one worker, for `HttpClient`."""

    def __init__(self, *, insecure_hosts: tuple[str, ...] = (), redirect_hosts: tuple[str, ...] = ()) -> None:
        """Args:
        insecure_hosts: HOST or HOST:PORT that plain HTTP may be spoken with.
        redirect_hosts: HOST or HOST:PORT that registries may name wherever they are, over HTTPS."""
        self._insecure_hosts = insecure_hosts
        self._redirect_hosts = redirect_hosts

    def allows_plain(self, origin: Origin, registry: Origin) -> bool:
        """Return whether plain HTTP may be spoken with an origin: a configured one, or the named registry on loopback."""
        if origin.is_named_in(self._insecure_hosts):
            return True
        return is_loopback(origin.host) and _is_same(origin, registry)

    def check_scheme(self, origin: Origin, registry: Origin) -> None:
        """Check that an origin is spoken with over HTTPS, or may be without it. Raises: BadImage."""
        if origin.scheme != "https" and not self.allows_plain(origin, registry):
            raise BadImage(f"{origin} is only spoken with over HTTPS; images.insecure_registries names exceptions")

    def connect(self, origin: Origin, registry: Origin, timeout_s: float) -> socket.socket:
        """Connect to an address of an origin that is permitted.

        Args: registry: the origin that the deployer named; timeout_s: for each address, and for each read later.
        Returns: a connected socket, which the caller closes.
        Raises: BadImage if no address of the origin is permitted; OSError if none answers."""
        self.check_scheme(origin, registry)
        found = socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
        reasons = {each: self.refusal(origin, registry, _address(each[4][0])) for each in found}
        allowed = [each for each, reason in reasons.items() if not reason]
        if not allowed:
            raise BadImage(next(iter(reasons.values())))
        return _connected(allowed, timeout_s)

    def refusal(self, origin: Origin, registry: Origin, address: Address) -> str:
        """Return why an address of an origin is not connected to, or nothing if it is.

        POLICY: which addresses may a registry have an import connect to?"""
        if origin.is_named_in((*self._insecure_hosts, *self._redirect_hosts)):
            return ""
        if _is_same(origin, registry):
            if origin.scheme != "https" and not address.is_loopback:
                return f"{origin} is {address}, which is not on loopback; images.insecure_registries names exceptions"
            if any(_is_in(each, _METADATA) for each in _carried(address)):
                return (
                    f"{origin} is {address}, a link-local or metadata address; images.redirect_hosts names exceptions"
                )
            return ""
        kind = next((kind for each in _carried(address) if (kind := _kind(each))), "")
        if not kind:
            return ""
        return (
            f"{registry} sends this import to {origin}, which is {address}, {kind}; "
            "images.redirect_hosts names hosts to which registries may send imports all the same"
        )


def _is_same(origin: Origin, registry: Origin) -> bool:
    """Return whether an origin is the registry, or the same host's HTTPS at its usual port."""
    is_https = (origin.scheme, origin.port) == ("https", _HTTPS_PORT)
    return origin.host == registry.host and (origin.port == registry.port or is_https)


def _kind(address: Address) -> str:
    """Return what an address is if it is not a public one of another host."""
    if not _is_public(address):
        return "not a public address"
    return "an address of this host" if _is_in(address, own_addresses()) else ""


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return not _is_in(address, (*_SPECIAL_IPV4, *_METADATA))
    return address in _GLOBAL_IPV6 and not _is_in(address, _SPECIAL_IPV6)


def _is_in(address: Address, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    return any(address.version == each.version and address in each for each in networks)


def _carried(address: Address) -> list[Address]:
    """Return the addresses that packets to an address may reach: those of IPv4 within it, or itself, or both."""
    if isinstance(address, IPv4Address):
        return [address]
    within = IPv4Address(address.packed[12:])
    if address.ipv4_mapped is not None or address in _NAT64:
        return [within]
    return [address, within] if address.packed[8:12] in _ISATAP else [address]


def _address(text: str | int) -> Address:
    """Parse an address of getaddrinfo, which may name a zone."""
    return ipaddress.ip_address(str(text).partition("%")[0])


def _connected(found: Iterable[tuple[int, int, int, str, tuple[object, ...]]], timeout_s: float) -> socket.socket:
    """Connect to the first address that answers. Raises: OSError of the last one."""
    failure = OSError("the name has no address")
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(timeout_s)
            sock.connect(address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure
