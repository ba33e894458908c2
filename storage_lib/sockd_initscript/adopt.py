"""Let a library use a connection that the initscript made, instead of dialling: http.client, urllib3, and so boto3.

    connection = sockd_initscript.link().get_conn(1)
    adopt.botocore(connection, "s3.local", 9000)       # before the client's first request to that host and port

The next connection that the library would dial to that host and port is this one, once; if the peer has closed it in the
meantime, and for every later one, the library dials as ever. A relay speaks plain bytes here and TLS beyond the engine,
which has checked the certificate: it takes the place of an https connection, without a second TLS inside.
"""

from __future__ import annotations

import _thread
import select
import socket

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    import http.client
    from typing import Any

    from .connection import Connection

_lock = _thread.allocate_lock()
_offered: dict[tuple[str, int], list[Connection]] = {}


def http_connection(connection: Connection, host: str, port: int) -> http.client.HTTPConnection:
    """A standard library connection on it. If the server closes it, the next request dials (without TLS, so not a relay)."""
    import http.client

    made = http.client.HTTPConnection(host, port)
    connection.sock.setblocking(True)
    made.sock = connection.sock
    return made


def urllib3(connection: Connection, host: str, port: int) -> None:
    """Have any pool of urllib3's for this host and port use it, requests' too."""
    from urllib3 import connectionpool

    _patch(connectionpool.HTTPConnectionPool, connectionpool.HTTPSConnectionPool)
    _offer(connection, host, port)


def botocore(connection: Connection, host: str, port: int) -> None:
    """Have a client of boto3 or botocore use it whose endpoint is at this host and port."""
    from botocore import awsrequest

    _patch(awsrequest.AWSHTTPConnectionPool, awsrequest.AWSHTTPSConnectionPool)
    _offer(connection, host, port)


def _offer(connection: Connection, host: str, port: int) -> None:
    with _lock:
        _offered.setdefault((host, port), []).append(connection)


def _take(host: str, port: int | None, kind: str) -> socket.socket | None:
    """An adopted connection that is still usable."""
    if not _offered:
        return None
    while True:
        with _lock:
            waiting = _offered.get((host, port or 0), [])
            found = next((connection for connection in waiting if connection.kind == kind), None)
            if found is None:
                return None
            waiting.remove(found)
        poller = select.poll()
        poller.register(found.sock, select.POLLIN)
        if not poller.poll(0):  # an idle connection on which something comes was closed, or is not idle
            return found.sock
        found.sock.close()


def _patch(plain_pool: Any, tls_pool: Any) -> None:
    """Let the pools make connections that look here first; once for each pool."""
    with _lock:
        if not issubclass(plain_pool.ConnectionCls, _Adopting):
            plain_pool.ConnectionCls = _adopting(plain_pool.ConnectionCls)
        if not issubclass(tls_pool.ConnectionCls, _Adopting):
            tls_pool.ConnectionCls = _adopting_relay(tls_pool.ConnectionCls)


class _Adopting:
    """Marks a class of connections that was patched."""


def _adopting(base: Any) -> type:
    class AdoptingConnection(_Adopting, base):
        def _new_conn(self) -> socket.socket:
            adopted = _take(self.host, self.port, "tcp")
            if adopted is None:
                dialled: socket.socket = super()._new_conn()
                return dialled
            _set_timeout(adopted, self.timeout)
            return adopted

    return AdoptingConnection


def _adopting_relay(base: Any) -> type:
    class AdoptingRelay(_Adopting, base):
        def connect(self) -> None:
            adopted = _take(self.host, self.port, "relay")
            if adopted is None:
                super().connect()
                return
            _set_timeout(adopted, self.timeout)
            self.sock = adopted
            self.is_verified = True  # by the engine

    return AdoptingRelay


def _set_timeout(sock: socket.socket, timeout: object) -> None:
    """What urllib3's own dialling does; its default, an object without meaning, is to wait for ever."""
    sock.settimeout(timeout if isinstance(timeout, (int, float)) else None)
