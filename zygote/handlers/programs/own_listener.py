"""OwnListener: whether the web server of this sandbox is who listens on its port, on a network that sandboxes share.

A server that closes its listener to open another one leaves its port to anybody for a moment, and TCP has no SO_PEERCRED. So the
kernel's table of sockets is read before and after a connection is made: if the same socket of our own uid, which no other sandbox
has, listened both times, the connection is to that socket, because the kernel gives a port to one uid at a time.

Owns nothing. Listeners are the first rows of a table, and reading ends at the one that is looked for: some 0.1 ms, where
reading all of the table takes 10 ms with 900 sockets.
"""

from __future__ import annotations

import os

from sockd_zygote.handlers.programs.runtime_api import LISTENING, LOOPBACK, TABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

LOOPBACK6 = "::1"
_ANY6 = "0" * 32
_HOSTS = {
    "00000000": LOOPBACK,
    "0100007F": LOOPBACK,
    "0000000000000000FFFF000000000000": LOOPBACK,
    "0000000000000000FFFF00000100007F": LOOPBACK,
    # Such a socket may have IPV6_V6ONLY, which no table shows; then 127.0.0.1 is not its address.
    _ANY6: LOOPBACK6,
}
"""Addresses in a table, and where the socket that listens there is reached for sure."""
_READ_BYTES = 1024
"""Six rows or so: the kernel makes no more of the table than is asked for."""


class OwnListener:
    """The socket that listens on a port. `find` it before and after a connection is made."""

    def __init__(self, port: int) -> None:
        self._suffix = f":{port:04X}"
        self._tables = [TABLE, f"{TABLE}6"]

    def find(self) -> tuple[str, str] | None:
        """Return the socket's inode number and the address at which it is reached; None: no process of our uid listens."""
        for table in list(self._tables):
            for fields in _listeners(table):
                address, _, _ = fields[1].partition(":")
                if fields[1].endswith(self._suffix) and address in _HOSTS:
                    self._tables.sort(key=lambda each: each != table)  # this one first, the next time
                    return (fields[9], _HOSTS[address]) if int(fields[7]) == os.getuid() else None
        return None


def _listeners(table: str) -> Iterator[list[str]]:
    """The fields of each row of a socket that listens."""
    try:
        fd = os.open(table, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # a kernel without IPv6
        return
    try:
        rest = b""
        is_head = True
        while more := os.read(fd, _READ_BYTES):
            *rows, rest = (rest + more).split(b"\n")
            for row in rows:
                fields = row.decode().split()
                if is_head:
                    is_head = False
                elif fields[3] != LISTENING:
                    return
                else:
                    yield fields
    finally:
        os.close(fd)
