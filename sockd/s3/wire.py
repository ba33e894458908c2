"""HTTP/1.1 as a server reads it from a blocking socket: heads, and bodies of a known length or in chunks.

`Wire` owns its buffer, not its socket. What could be read in two ways (two lengths, a length and chunks, folded lines) is
refused.
"""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass
from typing import Protocol

from sockd.sigv4.canonical import SignedRequest

HEAD_LIMIT_BYTES = 64 << 10
LINE_LIMIT_BYTES = 4096
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")


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
        """None: there is none. Raises BadRequest."""
        text = self.headers.get("content-length")
        if text is not None and not (text.isascii() and text.isdigit() and len(text) < 16):
            raise BadRequest("Content-Length")
        return None if text is None else int(text)

    def expects_continue(self) -> bool:
        return self.headers.get("expect", "").lower() == "100-continue"


class Wire:
    """The receiving half of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = b""
        self.arrived_ns = 0
        """When the first byte of the last head was read (CLOCK_MONOTONIC)."""

    def read_head(self) -> bytes | None:
        """The head of the next request, without its empty line; None when the client closed before one.

        Raises: BadRequest, OSError."""
        data = self._buffer.lstrip(b"\r\n")
        self.arrived_ns = time.monotonic_ns()
        while (end := data.find(b"\r\n\r\n")) < 0:
            if len(data) > HEAD_LIMIT_BYTES:
                raise BadRequest("the head is too long")
            more = self._socket.recv(HEAD_LIMIT_BYTES)
            if not data:
                self.arrived_ns = time.monotonic_ns()
            if not more:
                if data:
                    raise Truncated("in the head")
                return None
            data = (data + more).lstrip(b"\r\n")
        self._buffer = data[end + 4 :]
        return data[:end]

    def read(self, limit: int) -> bytes:
        """At least one byte of what comes next. Raises Truncated, OSError."""
        data = self._buffer
        if data:
            self._buffer = data[limit:]
            return data[:limit]
        data = self._socket.recv(limit)
        if not data:
            raise Truncated("in the body")
        return data

    def unread(self, data: bytes) -> None:
        self._buffer = data + self._buffer


class NoBody:
    """The body of a request that has none."""

    def read(self, limit: int) -> bytes:
        return b""


class LengthBody:
    """A body of Content-Length bytes."""

    def __init__(self, wire: Wire, length: int) -> None:
        self._wire = wire
        self._left = length

    def read(self, limit: int) -> bytes:
        if not self._left:
            return b""
        data = self._wire.read(min(limit, self._left))
        self._left -= len(data)
        return data


class ChunkedBody:
    """A body with Transfer-Encoding: chunked. Its trailers are read and forgotten."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._lines = Lines(wire)
        self._left = 0
        self._ended = False

    def read(self, limit: int) -> bytes:
        if self._ended:
            return b""
        if not self._left:
            self._left = chunk_size(self._lines.line())
            if not self._left:
                while self._lines.line():
                    pass
                self._wire.unread(self._lines.rest())
                self._ended = True
                return b""
        data = self._lines.read(min(limit, self._left))
        self._left -= len(data)
        if not self._left and self._lines.line():
            raise BadRequest("a chunk is longer than it said")
        return data


class Lines:
    """Lines and blocks of a source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._buffer = b""

    def line(self) -> bytes:
        """The next line without its end. Raises BadRequest."""
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > LINE_LIMIT_BYTES:
                raise BadRequest("a line is too long")
            self._fill(LINE_LIMIT_BYTES)
        line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
        return line

    def read(self, limit: int) -> bytes:
        """At least one byte. Raises BadRequest at the end."""
        if not self._buffer:
            self._fill(limit)
        data, self._buffer = self._buffer[:limit], self._buffer[limit:]
        return data

    def rest(self) -> bytes:
        """What was taken from the source and not used."""
        rest, self._buffer = self._buffer, b""
        return rest

    def _fill(self, limit: int) -> None:
        more = self._source.read(limit)
        if not more:
            raise Truncated("in the body")
        self._buffer += more


def chunk_size(line: bytes) -> int:
    """The number at a chunk's beginning; extensions after it are not looked at. Raises BadRequest."""
    digits = line.partition(b";")[0].strip()
    if not _SIZE.fullmatch(digits):
        raise BadRequest("the size of a chunk")
    return int(digits, 16)


def parse_head(data: bytes) -> Head:
    """Raises BadRequest."""
    first, *lines = data.decode("latin-1").split("\r\n")
    match first.split(" "):
        case [method, target, ("HTTP/1.1" | "HTTP/1.0") as version] if _TOKEN.fullmatch(method) and target:
            pass
        case _:
            raise BadRequest("the first line")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or "\n" in value or "\0" in value:
            raise BadRequest("a header")
        name, value = name.lower(), value.strip(" \t")
        if name in headers:
            if name in ("content-length", "host", "authorization", "transfer-encoding"):
                raise BadRequest(f"{name} twice")
            value = f"{headers[name]},{value}"
        headers[name] = value
    if target.startswith(("http://", "https://")):
        target = "/" + target.partition("://")[2].partition("/")[2]
    path, _, query = target.partition("?")
    if not path.startswith("/") or "#" in target:
        raise BadRequest("the target")
    connection = headers.get("connection", "").lower()
    return Head(method, path, query, headers, "close" not in connection if version == "HTTP/1.1" else False)


def body_of(head: Head, wire: Wire) -> Source:
    """The body that the head announces. Raises BadRequest."""
    length = head.content_length()
    coding = head.headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked" or length is not None:
            raise BadRequest("Transfer-Encoding")
        return ChunkedBody(wire)
    return LengthBody(wire, length) if length else NoBody()
