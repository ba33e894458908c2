"""Addresses as guests write them: `scheme://host:port`, and the bare `s3:`, `sqs:`, `dynamodb:`.

Owns what is a well-formed address. Knows nothing of who may use it.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from sockd_initscripts.rpc.base import malformed

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_AUTHORITY = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]{1,253}))(?::(?P<port>[0-9]{1,5}))?")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """Where connections go to. The host is lower-case, an IPv6 address without brackets."""

    scheme: str
    host: str
    port: int

    @property
    def tls(self) -> bool:
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """For a Host header: the port only if it is not the scheme's."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS.get(self.scheme) else f"{host}:{self.port}"


def parse_origin(address: str) -> Origin:
    """Raises: RpcFailed (malformed)."""
    scheme, _, authority = address.partition("://")
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise malformed(f"{address!r} is not scheme://host:port")
    port = int(match["port"]) if match["port"] else _DEFAULT_PORTS.get(scheme, 0)
    if not 0 < port < 65536:
        raise malformed(f"{address!r} has no valid port")
    if match["v6"]:
        host = parse_ip(match["v6"])
        if host is None:
            raise malformed(f"{address!r} has no valid IPv6 address")
        return Origin(scheme, str(host), port)
    return Origin(scheme, match["name"].lower().rstrip("."), port)


def parse_ip(text: str) -> IpAddress | None:
    """An address as the kernel will take it: one of IPv4 in IPv6's clothes is IPv4. None if it is none."""
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(ip, "ipv4_mapped", None) or ip
