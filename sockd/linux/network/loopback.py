"""One port on several addresses of this host at once; above all on both loopbacks.

Owns nothing: the caller closes the sockets. A name like `localhost` leads to 127.0.0.1 or to ::1, as the client's resolver
likes. Who holds a port on one of them alone leaves the other to anybody who then answers its clients.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence

LOOPBACKS = ("127.0.0.1", "::1")
_TRIES = 100
"""How many ports that the kernel picked for the first address may be taken on another one."""
_ABSENT = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""This host has no such address: IPv6 is not in the kernel, or switched off."""


def bind(
    hosts: Sequence[str],
    port: int,
    prepare: Callable[[socket.socket], None] | None = None,
    *,
    may_lack_all: bool = False,
) -> list[socket.socket]:
    """A TCP socket for each address, bound to the same port and not listening; a loopback that this host lacks is left out.

    Args:
        hosts: addresses; port: 0 is one that is free on all of them; prepare: sets options before a socket is bound;
        may_lack_all: whether this host may lack each of the loopbacks.
    Raises: OSError, with a note that names the address; then nothing is bound."""
    for _ in range(_TRIES if port == 0 else 1):
        try:
            return _bind(hosts, port, prepare, may_lack_all)
        except OSError as error:
            failed = error
            if error.errno != errno.EADDRINUSE:
                break
    raise failed


def _bind(
    hosts: Sequence[str], port: int, prepare: Callable[[socket.socket], None] | None, may_lack_all: bool
) -> list[socket.socket]:
    bound: list[socket.socket] = []
    lacking: OSError | None = None
    try:
        for host in hosts:
            try:
                bound.append(_bound(host, port, prepare))
                port = bound[0].getsockname()[1]
            except OSError as error:
                error.add_note(f"{show(host)}:{port}")
                if error.errno not in _ABSENT or host not in LOOPBACKS:
                    raise
                lacking = error
        if lacking is not None and not bound and not may_lack_all:
            raise lacking
    except BaseException:
        for sock in bound:
            sock.close()
        raise
    return bound


def _bound(host: str, port: int, prepare: Callable[[socket.socket], None] | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if prepare is not None:
            prepare(sock)
        sock.bind(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0][4])
    except BaseException:
        sock.close()
        raise
    return sock


def show(host: str) -> str:
    """An address as URLs have it, an IPv6 one in brackets."""
    return f"[{host}]" if ":" in host else host
