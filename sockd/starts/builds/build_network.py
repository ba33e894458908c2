"""Addresses of the host that a build may connect to: package indexes, proxies and nameservers, nothing else.

Owns nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from sockd.linux.bpf.address_guard import DNS_PORT, MOST_EXCEPTIONS, Endpoint
from sockd.linux.network.resolv_conf import nameservers

_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


def reachable(variables: Mapping[str, str]) -> list[Endpoint]:
    """The endpoints of the URLs in uv's variables, and the nameservers. Blocks: it resolves names; one that does not resolve
    is left out."""
    found = {(each, DNS_PORT) for each in nameservers()}
    for host, port in sorted(set(_hosts(variables))):
        found |= {(address, port) for address in _resolved(host)}
    return sorted(found)[:MOST_EXCEPTIONS]


def _hosts(variables: Mapping[str, str]) -> Iterator[Endpoint]:
    for value in variables.values():
        for word in value.split():
            name, equals, url = word.partition("=")  # an index may have a name: sockd-0=https://...
            try:
                parts = urlsplit(url if equals and "://" not in name else word)
                host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
            except ValueError:
                continue
            if host and port:
                yield host, port


def _resolved(host: str) -> set[str]:
    try:
        return {str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return set()
