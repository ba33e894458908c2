"""HTTP/1.1 as a server reads it from a blocking socket, with the parser of the worker's own APIs.

`Wire` owns the parser, not its socket.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import httptools

from sockd.base.sigv4.canonical import SignedRequest
from sockd.http.server.limits import ConnectionLimits
from sockd.http.server.messages import head as http
from sockd.http.server.messages.reader import RequestReader

LIMITS = ConnectionLimits(head_bytes=64 << 10)
READ_BYTES = 64 << 10
_ONCE = ("host", "authorization")
"""Headers of which two would have no one meaning. (Of lengths and codings the parser takes care.)"""


class BadRequest(Exception):
    """Not HTTP as it must be; the connection is of no more use."""


class Truncated(BadRequest):
    """The client went away within a request."""


class Source(Protocol):
    """Where bytes of a body come from."""

    def read(self, limit: int) -> bytes:
        """At most `limit` bytes, at least one, or b"" at the body's end."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first line and the headers of a request."""

    method: str
    path: str
    """Still percent-encoded."""
    query: str
    """Still percent-encoded, without the question mark."""
    headers: dict[str, str]
    """Names in lower case; values of a repeated name joined by commas."""
    keep_alive: bool

    def signed(self) -> SignedRequest:
        return SignedRequest(self.method, self.path, self.query, self.headers)

    def content_length(self) -> int | None:
        """None: there is none."""
        text = self.headers.get("content-length")
        return None if text is None else http.length_of(text)

    def has_body(self) -> bool:
        return bool(self.content_length()) or "transfer-encoding" in self.headers

    def expects_continue(self) -> bool:
        return self.headers.get("expect", "").lower() == "100-continue"


class Wire(RequestReader):
    """The receiving half of a connection: `read_head`, then its `body` to the end, and again."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(LIMITS, time.monotonic)
        self._socket = connection
        self._read: deque[tuple[http.Head, bool] | bytes | BadRequest | None] = deque()
        """What has been parsed and not been asked for: heads, whether their connection goes on; parts of bodies; None at the
        end of each; and last, why no more can be parsed."""
        self._begun_ns = 0
        self.arrived_ns = 0
        """When the first byte of the last head was read (CLOCK_MONOTONIC)."""

    def read_head(self) -> Head | None:
        """The head of the next request; None when the client has closed the connection. Raises: BadRequest, OSError."""
        asked_ns = time.monotonic_ns()
        if not self._fill():
            return None
        first = self._read.popleft()
        if isinstance(first, BadRequest):
            raise first
        assert isinstance(first, tuple)
        self.arrived_ns = max(asked_ns, self._begun_ns)
        return _head_of(*first)

    def body(self, head: Head) -> Source:
        """The body of the head that was read last."""
        if head.has_body():
            return _Body(self)
        self._read.popleft()
        return NoBody()

    def read(self, limit: int) -> bytes:
        """At least one byte of a body, or b"" at its end, once. Raises: BadRequest, OSError."""
        if not self._fill():
            raise Truncated("in the body")
        part = self._read.popleft()
        if isinstance(part, BadRequest):
            raise part
        if part is None:
            return b""
        assert isinstance(part, bytes)
        if len(part) > limit:
            self._read.appendleft(part[limit:])
        return part[:limit]

    def _fill(self) -> bool:
        """Read until something is parsed; False when the client has closed the connection."""
        while not self._read:
            data = self._socket.recv(READ_BYTES)
            if not data:
                return False
            refusal = self.feed(data)
            if refusal is not None:
                self._read.append(BadRequest(refusal.error_type))
        return True

    # -- the parser's calls

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begun_ns = time.monotonic_ns()

    def on_head(self, head: http.Head, *, keep_alive: bool) -> None:
        self._read.append((head, keep_alive))

    def on_body(self, data: bytes) -> None:
        self._read.append(data)

    def on_whole(self, *, in_parts: bool) -> None:
        self._read.append(None)


class NoBody:
    """The body of a request that has none."""

    def read(self, limit: int) -> bytes:
        return b""


class _Body:
    """A body that comes from the wire, which gives its end once."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._ended = False

    def read(self, limit: int) -> bytes:
        data = b"" if self._ended else self._wire.read(limit)
        self._ended = not data
        return data


def _head_of(head: http.Head, keep_alive: bool) -> Head:
    """Raises: BadRequest."""
    if head.version not in ("1.0", "1.1"):
        raise BadRequest("the version")
    try:
        path, query = (part.decode("latin-1") for part in head.path_and_query())
    except httptools.HttpParserInvalidURLError:
        raise BadRequest("the target") from None
    if not path.startswith("/") or b"#" in head.target:
        raise BadRequest("the target")
    headers: dict[str, str] = {}
    for name, value in ((name.decode("latin-1"), value.decode("latin-1").strip(" \t")) for name, value in head.headers):
        if name in headers:
            if name in _ONCE:
                raise BadRequest(f"{name} twice")
            value = f"{headers[name]},{value}"
        headers[name] = value
    return Head(head.method.decode(), path, query, headers, keep_alive)
