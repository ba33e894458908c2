"""Ports of the host that the worker grants to sandboxes: each to one sandbox, whose uid alone may bind it among all sandboxes.

    the uid ── grant ─► a port that is free, which `PortGuard` keeps other sandboxes from ── release, after the last process

A port is taken from outside of those that the kernel gives to connections by itself (net.ipv4.ip_local_port_range): one of these
could be gone before the program binds it. Processes of the host that are no sandbox are not kept from a port.

Owns nothing: a sandbox's process owns its port.
"""

from __future__ import annotations

import errno
import random
import socket
from pathlib import Path

from sockd.base.errors import NoHostPort
from sockd.linux.bpf.port_guard import PortGuard

FIRST, LAST = 10_000, 65_535
"""POLICY: below are the ports that well-known programs have."""
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_RESERVED = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")
_ANY = ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0"))


class GrantedPorts:
    """The ports of the host that one worker grants."""

    def __init__(self, guard: PortGuard) -> None:
        self._guard = guard

    def check(self) -> None:
        """Raises: NoHostPort: this kernel, or the worker's capabilities, cannot guard a port."""
        if not self._guard.guards:
            raise NoHostPort(
                "this worker cannot keep other functions from a port of the host (eBPF at bind(2), see `sockd doctor`), so a "
                'service needs network = "private" or "none"'
            )

    def grant(self, uid: int) -> int:
        """A TCP port that is free on all addresses of the host, for this uid until `release`.

        Raises: NoHostPort: there is none, or it could not be guarded."""
        self.check()
        candidates = ports()
        begin = random.randrange(len(candidates) or 1)
        for port in candidates[begin:] + candidates[:begin]:
            try:
                self._guard.grant(port, uid)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise NoHostPort(f"a port of the host could not be guarded: {error.strerror}") from error
            if is_free(port):  # asked after the grant: no sandbox can take it from now on
                return port
            self._guard.release(port)
        raise NoHostPort(
            f"no port from {FIRST} to {LAST} is free for a service; those of net.ipv4.ip_local_port_range are not used, unless "
            "net.ipv4.ip_local_reserved_ports names them"
        )

    def release(self, port: int) -> None:
        """Take a port back. Call it once, after the last process that may have bound it has ended."""
        self._guard.release(port)


def ports() -> list[int]:
    """The ports that the kernel gives to no connection by itself, in order."""
    first, last = map(int, _RANGE.read_text().split())
    reserved = _reserved(_RESERVED.read_text())
    return [port for port in range(FIRST, LAST + 1) if not first <= port <= last or port in reserved]


def is_free(port: int) -> bool:
    """Whether the port is free on all addresses; a connection that has just ended there may still have it."""
    for family, address in _ANY:
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # a kernel without IPv6
            continue
        with sock:
            try:
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind((address, port))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:  # IPv6 is switched off
                    return False
    return True


def _reserved(text: str) -> set[int]:
    """The ports of a list such as `8080,9100-9105`."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
