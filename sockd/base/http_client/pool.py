"""Kept connections to one server, and whole exchanges over them, each within a deadline."""

from __future__ import annotations

import errno
import http.client
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from sockd.base.http_client.connection import new_connection

_PIECE_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes
    is_repeated: bool
    """Whether the request was sent before, over a connection that broke: the server may have served it twice."""


class TooLong(Exception):
    """The body is longer than the caller accepts."""


class ConnectionPool:
    """Connections to one server. Safe for several threads: each exchange has a connection of its own. Owns the idle ones.

    Args:
        url: http:// or https://, a host, and a port if it is not the usual one.
        connect_s: seconds for a connection to be made.
        kept: the most idle connections.
        repeats: send a request again if the server closed a kept connection under it; only for requests that may be served twice.
    """

    def __init__(self, url: str, *, connect_s: float, kept: int = 32, repeats: bool = False) -> None:
        """Raises: ValueError, without credentials that the URL may have."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.path.strip("/"):
            raise ValueError(
                f"not an endpoint: it must be http://HOST[:PORT] or https://HOST[:PORT], not {parts.path!r}"
            )
        self.host = parts.netloc
        """The value of the Host field."""
        self._address = parts.hostname, parts.port
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._connect_s = connect_s
        self._kept = kept
        self._repeats = repeats
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: set[http.client.HTTPConnection] = set()
        self._is_closed = False
        self._lock = threading.Lock()
        self.requests = 0
        """Exchanges begun."""
        self.heard_s = 0.0
        """The time of the last byte that arrived (time.monotonic)."""

    def exchange(
        self, method: str, target: str, fields: Mapping[str, str], body: bytes, *, limit_bytes: int, deadline_s: float
    ) -> Answer:
        """Send a request, and read its whole answer.

        Args:
            target: path and query, percent-encoded.
            fields: all fields of the head, except Content-Length.
            limit_bytes: the longest body of an answer.
            deadline_s: seconds from the first byte sent to the last one received.
        Raises: TooLong; one of BROKEN."""
        deadline = time.monotonic() + deadline_s
        is_repeated = False
        while True:
            connection, is_kept = self._take()
            try:
                response, data = self._exchange(connection, method, target, fields, body, limit_bytes, deadline)
                return Answer(response.status, response.headers, data, is_repeated)
            except (ConnectionError, http.client.BadStatusLine):
                connection.close()
                if not is_kept or not self._repeats:
                    raise
                is_repeated = True  # the server closed a connection that was idle; the next one is as old, or new
            except BaseException:
                connection.close()
                raise
            finally:
                with self._lock:
                    self._busy.discard(connection)

    def close(self) -> None:
        """Close idle connections, and end exchanges that are under way: they fail, and later ones do."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            for connection in self._busy:
                if (sock := connection.sock) is not None:
                    with suppress(OSError):  # it was not connected yet
                        sock.shutdown(socket.SHUT_RDWR)
        for connection in idle:
            connection.close()

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        fields: Mapping[str, str],
        body: bytes,
        limit_bytes: int,
        deadline: float,
    ) -> tuple[http.client.HTTPResponse, bytes]:
        if connection.sock is None:
            connection.connect()  # sets TCP_NODELAY
        sock = connection.sock  # http.client forgets it when the server is going to close
        self._send(connection, sock, method, target, fields, body, deadline)
        sock.settimeout(_left(deadline))
        response = connection.getresponse()
        data = self._body(response, sock, limit_bytes, deadline)
        self._give_back(connection, response)
        return response, data

    def _send(
        self,
        connection: http.client.HTTPConnection,
        sock: socket.socket,
        method: str,
        target: str,
        fields: Mapping[str, str],
        body: bytes,
        deadline: float,
    ) -> None:
        sock.settimeout(_left(deadline))
        connection.putrequest(method, target, skip_host="Host" in fields, skip_accept_encoding=True)
        for field, value in fields.items():
            connection.putheader(field, value)
        if body or method in ("PUT", "POST"):
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders()
        # In pieces: a timeout holds for one send, the deadline for all of them.
        for start in range(0, len(body), _PIECE_BYTES):
            sock.settimeout(_left(deadline))
            connection.send(memoryview(body)[start : start + _PIECE_BYTES])

    def _body(
        self, response: http.client.HTTPResponse, sock: socket.socket, limit_bytes: int, deadline: float
    ) -> bytes:
        self.heard_s = time.monotonic()
        length = response.length
        if length is not None and length > limit_bytes:
            raise TooLong
        pieces = []
        size = 0
        while piece := response.read1(_PIECE_BYTES):
            self.heard_s = time.monotonic()
            size += len(piece)
            if size > limit_bytes:
                raise TooLong
            pieces.append(piece)
            if not response.isclosed():  # Python 3.13 closes it behind the last byte, and a socket that is not kept
                sock.settimeout(_left(deadline))
        data = b"".join(pieces)
        if length is not None and size < length:
            raise http.client.IncompleteRead(data, length - size)
        return data

    def _take(self) -> tuple[http.client.HTTPConnection, bool]:
        """Take an idle connection, or make one; True: it is a kept one."""
        with self._lock:
            if self._is_closed:
                raise ConnectionAbortedError(errno.ECONNABORTED, "the connections were closed")
            self.requests += 1
            connection = self._idle_one()
            is_kept = connection is not None
            if connection is None:
                connection = new_connection(*self._address, timeout_s=self._connect_s, tls=self._tls)
            self._busy.add(connection)
            return connection, is_kept

    def _idle_one(self) -> http.client.HTTPConnection | None:
        """Take the connection used last that its server has not closed."""
        while self._idle:
            connection = self._idle.pop()
            if not _is_readable(connection.sock):
                return connection
            connection.close()  # nothing but the end of a connection comes between two exchanges
        return None

    def _give_back(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        response.close()  # its file; read1 leaves it open
        with self._lock:
            if not response.will_close and not self._is_closed and len(self._idle) < self._kept:
                self._idle.append(connection)
                return
        connection.close()


def _is_readable(sock: socket.socket) -> bool:
    """Return whether a connection has data or its end. Functions of tests have this module without sockd.linux."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))


def _left(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
