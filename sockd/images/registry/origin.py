"""Origins: scheme, host and port of an address that an import connects to, as RFC 6454 defines them. Pure."""

from __future__ import annotations

import ipaddress
import urllib.parse
from dataclasses import dataclass

from sockd.base.errors import BadImage

_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request goes."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Origin:
        """Parse the origin of a URL. Raises: BadImage."""
        try:
            parts = urllib.parse.urlsplit(url)
            port = parts.port
        except ValueError:
            raise BadImage(f"a registry sent the malformed address {url[:100]!r}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise BadImage(f"a registry sent the address {url[:100]!r}, which is not followed")
        return cls(parts.scheme, parts.hostname, port or _PORTS[parts.scheme])

    def __str__(self) -> str:
        """Return the host for people: with its port, unless it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def is_named_in(self, hosts: tuple[str, ...]) -> bool:
        """Return whether a list of HOST or HOST:PORT names this origin; addresses of IPv6 may be in brackets."""
        bracketed = f"[{self.host}]"
        return bool({self.host, bracketed, f"{self.host}:{self.port}", f"{bracketed}:{self.port}"} & set(hosts))


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine by its name alone; no name is resolved."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
