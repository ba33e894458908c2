"""What keeps web pages out of a port that listens on loopback. Knows nothing of requests.

A page on the web can point its own name at 127.0.0.1 and then talk to this port as its own origin (DNS rebinding). Its
requests carry that name, so the port answers only to loopback's names. And without any trick it can have the browser post to
http://127.0.0.1, though not read the answer: of such requests browsers say that they are cross-site (W3C Fetch Metadata).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from sockd.base.config import HttpConfig
from sockd.base.errors import SockdError
from sockd.http.server.listening.sockets import parse_listen

SAFE = frozenset({b"GET", b"HEAD", b"OPTIONS"})
"""Methods that are to change nothing (RFC 9110, 9.2.1)."""
_REMEMBERED = 64


class ForbiddenHost(SockdError):
    """A loopback port was addressed by a name that is not loopback's."""

    status = 403
    error_type = "AccessDeniedException"


class CrossSite(SockdError):
    """A page of another site had a browser invoke something."""

    status = 403
    error_type = "AccessDeniedException"

    def __init__(self) -> None:
        super().__init__(
            "a page of another site sent this, and this worker listens on loopback; if pages of other sites may invoke "
            "functions here, set http.cross_site = true"
        )


class OtherOrigin(SockdError):
    """A page of another origin had a browser open a WebSocket, which no rule of the browser keeps from it."""

    status = 403
    error_type = "AccessDeniedException"

    def __init__(self) -> None:
        super().__init__(
            "a page of another origin opens this WebSocket, and this worker listens on loopback; if pages of other origins may, "
            "set http.cross_site = true"
        )


class NoServiceWorkers(SockdError):
    """A browser asked for the script of a service worker where all functions share one origin."""

    status = 403
    error_type = "AccessDeniedException"

    def __init__(self) -> None:
        super().__init__(
            "no service worker is served here: all functions share this address, and one could take over the pages of "
            "others. A function URL has a name of its own"
        )


def may_come_from(site: bytes, method: bytes, config: HttpConfig) -> bool:
    """Whether a request may be answered, by what a browser says of where it comes from (Sec-Fetch-Site).

    What changes nothing may: a link from a page elsewhere is one."""
    if site != b"cross-site" or method in SAFE or config.cross_site:
        return True
    return not is_loopback(parse_listen(config.listen)[0])


def check_origin(headers: Iterable[tuple[bytes, bytes]], host: bytes, config: HttpConfig) -> None:
    """Refuse a WebSocket that a page of another origin opens; programs that are no browser send no Origin (RFC 6455, 10.2).

    Raises: OtherOrigin."""
    if config.cross_site or not is_loopback(parse_listen(config.listen)[0]):
        return
    for name, value in headers:
        if name == b"origin" and value.partition(b"://")[2].lower() != host.lower():
            raise OtherOrigin


class HostCheck:
    """Which Host headers may be answered: any, when `listen` is not loopback."""

    def __init__(self, listen: str) -> None:
        self._configured, _ = parse_listen(listen)
        self._is_loopback = is_loopback(self._configured)
        self.known: set[bytes] = set()
        """Some that may be, so that a caller need not ask again."""

    def allows(self, header: bytes) -> bool:
        if header in self.known or not self._is_loopback:
            return True
        name = _without_port(header.decode("latin-1")).lower()
        if name != self._configured.lower() and not is_loopback(name):
            return False
        if len(self.known) < _REMEMBERED:
            self.known.add(header)
        return True


def _without_port(header: str) -> str:
    if header.startswith("["):
        name, bracket, _ = header[1:].partition("]")
        return name if bracket else header
    return header.partition(":")[0]


def is_loopback(name: str) -> bool:
    """Whether only this machine reaches a host of this name."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
