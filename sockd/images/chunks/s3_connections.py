"""Signed HTTP requests to one S3 endpoint: kept connections, deadlines, bounded retries.

Any threads may call at once: each exchange has a connection of its own from the pool. An exchange is repeated after a
connection that broke, an answer that ended early, a deadline, and the statuses that S3 uses for "again, later"; so every
request must be one that may be repeated. Credentials are in no message.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from sockd.base.errors import StoreUnavailable
from sockd.base.sigv4.credentials import Credentials
from sockd.base.sigv4.signer import Signer
from sockd.base.strict_response import StrictResponse

AGAIN = frozenset({408, 409, 429, 500, 502, 503, 504})
_PIECE_BYTES = 256 << 10
Received = tuple[http.client.HTTPResponse, bytes]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a store may take."""

    connect_s: float = 2.0
    attempt_s: float = 10.0
    """One attempt, from its first byte to the last of its answer."""
    attempts: int = 3
    pause_s: float = 0.1
    """Before the second attempt; doubles with each."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes
    attempts: int
    """How many it took. After the first one, a write may have been done already."""


class TooLong(Exception):
    """The body is longer than the caller accepts."""


class S3Connections:
    """The pool of one endpoint.

    Args:
        store: its name in messages.
        endpoint: http:// or https://, a host, and a port if it is not the usual one."""

    def __init__(
        self, store: str, endpoint: str, credentials: Credentials, *, region: str, patience: Patience, kept: int = 32
    ) -> None:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.path.strip("/"):
            raise ValueError(
                f"not an endpoint: it must be http://HOST[:PORT] or https://HOST[:PORT], not {parts.path!r}"
            )
        self._store = store
        self._host = parts.hostname
        self._port = parts.port
        self._host_header = parts.netloc
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._signer = Signer(credentials, service="s3", region=region)
        self._patience = patience
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: set[http.client.HTTPConnection] = set()
        self._kept = kept
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.requests = 0
        """Exchanges begun."""
        self.heard_s = 0.0
        """When something came last (time.monotonic)."""

    def request(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        limit_bytes: int = 1 << 20,
    ) -> Answer:
        """The first answer whose status is not in AGAIN.

        Args:
            target: path and query, percent-encoded.
            limit_bytes: longest body of an answer.

        Raises: StoreUnavailable; TooLong."""
        why = ""
        for attempt in range(1, self._patience.attempts + 1):
            if self._closed.is_set():
                raise StoreUnavailable(self._store, "it was closed")
            if attempt > 1:
                self._closed.wait(self._patience.pause_s * 2 ** (attempt - 2))
            fields = {"Host": self._host_header, **(headers or {})}
            self._signer.sign(method, target, fields, body)
            if method == "PUT":
                fields["Content-Length"] = str(len(body))
            try:
                response, data = self._exchange(method, target, fields, body, limit_bytes)
            except (OSError, http.client.HTTPException) as error:
                why = _words(error)
                continue
            if response.status not in AGAIN:
                return Answer(response.status, response.headers, data, attempt)
            why = f"it answers {response.status} {error_code(data)}".rstrip()
        raise StoreUnavailable(self._store, f"{why} ({self._patience.attempts} attempts)")

    def close(self) -> None:
        """Close idle connections, and end requests that are under way: they fail."""
        self._closed.set()
        with self._lock:
            idle, self._idle = self._idle, []
            for connection in self._busy:
                if (sock := connection.sock) is not None:
                    with suppress(OSError):  # it was not connected yet
                        sock.shutdown(socket.SHUT_RDWR)
        for connection in idle:
            connection.close()

    def _exchange(self, method: str, target: str, fields: dict[str, str], body: bytes, limit_bytes: int) -> Received:
        deadline = time.monotonic() + self._patience.attempt_s
        while True:
            connection, is_kept = self._take()
            try:
                return self._exchanged(connection, method, target, fields, body, limit_bytes, deadline)
            except (ConnectionError, http.client.BadStatusLine):
                connection.close()
                if not is_kept:
                    raise
                # The server closed a connection that was idle; the next one is as old, or new.
            except BaseException:
                connection.close()
                raise
            finally:
                with self._lock:
                    self._busy.discard(connection)

    def _exchanged(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        fields: dict[str, str],
        body: bytes,
        limit_bytes: int,
        deadline: float,
    ) -> Received:
        if connection.sock is None:
            connection.connect()  # sets TCP_NODELAY
        sock = connection.sock  # http.client forgets it when the server is going to close
        sock.settimeout(_left(deadline))
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for field, value in fields.items():
            connection.putheader(field, value)
        connection.endheaders()
        # In pieces: a timeout holds for one send, the deadline for all of them.
        for start in range(0, len(body), _PIECE_BYTES):
            sock.settimeout(_left(deadline))
            connection.send(memoryview(body)[start : start + _PIECE_BYTES])
        sock.settimeout(_left(deadline))
        response = connection.getresponse()
        self.heard_s = time.monotonic()
        length = response.length
        if length is not None and length > limit_bytes and method != "HEAD":
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
        if length is not None and size < length and method != "HEAD":
            raise http.client.IncompleteRead(b"", length - size)
        self._give_back(connection, response)
        return response, b"".join(pieces)

    def _take(self) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            self.requests += 1
            is_kept = bool(self._idle)
            connection = self._idle.pop() if is_kept else self._new()
            self._busy.add(connection)
            return connection, is_kept

    def _new(self) -> http.client.HTTPConnection:
        timeout_s = self._patience.connect_s
        connection: http.client.HTTPConnection
        if self._tls:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._tls)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        connection.response_class = StrictResponse
        return connection

    def _give_back(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        response.close()  # its file; read1 leaves it open
        if response.will_close:
            connection.close()
            return
        with self._lock:
            if len(self._idle) < self._kept:
                self._idle.append(connection)
                return
        connection.close()


def _left(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    if isinstance(error, http.client.HTTPException):
        return "its answer ended early" if isinstance(error, http.client.IncompleteRead) else "it does not speak HTTP"
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


def error_code(body: bytes) -> str:
    """S3's own code of an error."""
    _, found, rest = body.partition(b"<Code>")
    return rest.partition(b"</Code>")[0][:64].decode(errors="replace") if found else ""
