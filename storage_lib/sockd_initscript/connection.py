"""A connection of an initscript that the function goes on with."""

from __future__ import annotations

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    import socket


class Connection:
    """An established connection that the script made. Closing `sock` is the receiver's affair.

    kind: "tcp": the connection itself; "relay": a socket on which the engine speaks plain bytes and TLS beyond, to the
    host whose certificate it checked as `tls_server_name`."""

    __slots__ = ("addr", "kind", "sock", "tls_server_name")

    def __init__(self, sock: socket.socket, addr: str, kind: str, tls_server_name: str | None) -> None:
        self.sock = sock
        self.addr = addr
        self.kind = kind
        self.tls_server_name = tls_server_name
