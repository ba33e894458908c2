"""Listening sockets that this process was given: by systemd (sd_listen_fds(3)), or by the worker before it.

Owns the sockets until a server takes them. A socket that was given is used where its address is one that the configuration names;
the addresses that no given socket has are bound.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterable
from pathlib import Path

from sockd.base.errors import BadConfig
from sockd.http.server.listening.sockets import (
    addresses_of,
    adopt_tcp,
    bind_more,
    bind_unix,
    closed_first,
    own_path,
    parse_listen,
)
from sockd.linux.network import loopback

HTTP, RUN, MANAGEMENT, KEYED = "http", "run", "management", "keyed"
"""Names of the four servers' sockets, as one worker gives them to the next."""
NAMES = frozenset((HTTP, RUN, MANAGEMENT, KEYED))
FIRST_FD = 3
"""SD_LISTEN_FDS_START."""

Named = tuple[str, socket.socket]


class Inherited:
    """The sockets that were given and not taken yet, by name. `close` closes them."""

    def __init__(self, named: Iterable[Named] = (), *, are_kept: bool = False) -> None:
        """Args: are_kept: whether another process keeps the sockets open when this one ends, as systemd does."""
        self._named = list(named)
        self.are_kept = are_kept

    @classmethod
    def of_environment(cls) -> Inherited:
        """Take the descriptors that LISTEN_FDS counts, and the variables out of the environment.

        Raises: BadConfig: a descriptor is no listening socket."""
        pid, count, names = (os.environ.pop(f"LISTEN_{word}", "") for word in ("PID", "FDS", "FDNAMES"))
        if pid != str(os.getpid()) or not count.isascii() or not count.isdigit():
            return cls()
        each_name = names.split(":") + [""] * int(count)
        named = [
            (name, _socket_of(FIRST_FD + index)) for index, name in zip(range(int(count)), each_name, strict=False)
        ]
        return cls(named, are_kept=not NAMES.issuperset(name for name, _ in named))

    def tcp(self, name: str, listen: str) -> list[socket.socket]:
        """Return a socket for each address of `listen`, all on one port: given ones, and bound ones where none was given.

        Args: name: HTTP or KEYED; a socket of another server is not taken.
        Raises: BadConfig: the host has no address; OSError: an address cannot be bound."""
        host, port = parse_listen(listen)
        addresses = addresses_of(host)
        given = [each for each in self._named if _may_be(each, name, addresses, port)]
        taken: dict[str, socket.socket] = {}
        for each in given:
            address, its_port = each[1].getsockname()[:2]
            if port in (0, its_port) and address not in taken:
                self._named.remove(each)
                taken[address], port = adopt_tcp(each[1]), its_port
        try:
            bound = bind_more([address for address in addresses if address not in taken], port, listen, bool(taken))
        except BaseException:
            for sock in taken.values():
                sock.close()
            raise
        return [closed_first(sock) for sock in (*taken.values(), *bound)]

    def unix(self, name: str, path: Path, mode: int = 0o600, gid: int | None = None) -> socket.socket:
        """Return the given socket of this name, with the mode and the group of its path set, or a bound one.

        Raises: BadConfig, OSError: as `bind_unix`."""
        for each in self._named:
            if each[0] == name and each[1].family == socket.AF_UNIX and _is_socket(path):
                self._named.remove(each)
                own_path(path, mode, gid)
                return each[1]
        return bind_unix(path, mode, gid)

    def check_taken(self) -> None:
        """Refuse sockets of systemd that no server has taken; those of another worker may have another address now.

        Raises: BadConfig."""
        if left := ", ".join(_shown(sock) for name, sock in self._named if name not in NAMES):
            raise BadConfig(
                f"systemd listens on {left}, which is neither http.listen nor management.listen: make ListenStream= of the "
                "socket unit and the configuration name the same addresses"
            )
        self.close()

    def close(self) -> None:
        """Close what was not taken; safe to call twice."""
        named, self._named = self._named, []
        for _, sock in named:
            sock.close()


def _may_be(each: Named, name: str, addresses: Iterable[str], port: int) -> bool:
    """Whether a socket belongs to a server: by its name, or by its address where systemd has named it."""
    its_name, sock = each
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.getsockname()[0] not in addresses:
        return False
    return its_name == name or (its_name not in NAMES and port == sock.getsockname()[1])


def _socket_of(fd: int) -> socket.socket:
    os.set_inheritable(fd, False)
    try:
        sock = socket.socket(fileno=fd)
        is_listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise BadConfig(f"LISTEN_FDS: descriptor {fd} is not a socket: {error.strerror}") from None
    if not is_listening or sock.type != socket.SOCK_STREAM:
        raise BadConfig(
            f"LISTEN_FDS: descriptor {fd} is not a listening stream socket: use ListenStream= and Accept=no"
        )
    return sock


def _is_socket(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return stat.S_ISSOCK(os.stat(path, follow_symlinks=False).st_mode)
    return False


def _shown(sock: socket.socket) -> str:
    address = sock.getsockname()
    return f"{loopback.show(address[0])}:{address[1]}" if isinstance(address, tuple) else repr(address)
