"""The head of a request: its first line and its headers, as they came.

Owns nothing. What must have one meaning only (lengths, chunks, folded lines) the parser has seen to.
"""

from __future__ import annotations

import re

import httptools

Headers = list[tuple[bytes, bytes]]
"""Names in lower case."""
_ABSOLUTE = re.compile(rb"https?://([^/?#@]+)(/[^#]*)?(\?[^#]*)?", re.IGNORECASE)


def length_of(digits: bytes | str) -> int:
    """A Content-Length. The parser has refused everything but one number below 2**64; zeros in front of it may be as many as
    a head has room for, and `int` refuses more than 4300 digits."""
    return int(digits.lstrip(b"0" if isinstance(digits, bytes) else "0") or "0")  # type: ignore[arg-type]


def in_origin_form(target: bytes, headers: Headers) -> tuple[bytes, Headers]:
    """A target that names the host as well, the form for proxies, in the form for servers; others stay as they are.

    The host of the target stands for that of the Host header (RFC 9112, 3.2.2): what is checked is what was asked for."""
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        return target, headers
    host, path, query = found.groups(b"")
    return (path or b"/") + query, [(name, host if name == b"host" else value) for name, value in headers]


class Head:
    """A head that has been read to its end."""

    __slots__ = ("headers", "method", "target", "version")
    asks_for_websocket = False
    """Whether it asks to go on as a WebSocket (RFC 6455, 4.1); the headers that say so are not among `headers`."""

    def __init__(self, method: bytes, target: bytes, version: str, headers: Headers) -> None:
        self.method = method
        self.target = target
        self.version = version
        """`1.1` or `1.0`."""
        self.headers = headers

    def path_and_query(self) -> tuple[bytes, bytes]:
        """The two parts of the target, undecoded. Raises: HttpParserInvalidURLError."""
        target = self.target
        if target.startswith(b"/"):
            path, _, query = target.partition(b"?")
            return path, query
        url = httptools.parse_url(target)
        return url.path or b"", url.query or b""

    def expects_continue(self) -> bool:
        """Whether the client waits to be asked for its body."""
        return self.version == "1.1" and any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in self.headers
        )

    def content_length(self) -> int:
        """What it says of its body's length, 0 if nothing."""
        return next((length_of(value) for name, value in self.headers if name == b"content-length"), 0)

    def size_bytes(self) -> int:
        """The length of all lines, but for a few characters of the first."""
        return len(self.target) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def may_become_websocket(self) -> bool:
        """Whether a head that asks for another protocol asks for a WebSocket, and so has no body."""
        names = {name for name, _ in self.headers}
        return (
            self.method == b"GET"
            and self.version == "1.1"
            and names.isdisjoint((b"content-length", b"transfer-encoding"))
            and b"sec-websocket-key" in names
            and any(name == b"upgrade" and value.lower() == b"websocket" for name, value in self.headers)
        )

    def without_upgrade(self) -> bytes:
        """The same request, asking for no other protocol."""
        lines = [b"%s %s HTTP/%s" % (self.method, self.target, self.version.encode())]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip().lower() for token in value.split(b",")]
                value = b", ".join(token for token in tokens if token in (b"close", b"keep-alive"))
            if name not in (b"upgrade", b"http2-settings"):
                lines.append(name + b": " + value)
        return b"\r\n".join(lines) + b"\r\n\r\n"


class WebSocketHead(Head):
    """The head of a request that asks for a WebSocket, and is otherwise that of a plain GET."""

    __slots__ = ()
    asks_for_websocket = True
