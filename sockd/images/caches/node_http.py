"""The HTTP/1.1 between a worker and a cache node: heads of requests and answers, sans-IO. Both ends import it.

    GET /stripes/NAME/N     200 with the stripe, 404
    PUT /stripes/NAME/N     204; 400 the body is no intact stripe; 411, 413, 507
    GET /status             200 with counters as JSON

NAME is a chunk's name in hexadecimal. N tells apart several stripes of one chunk on one node; it is 0 where a chunk has five
nodes. With a token, all requests have `Authorization: Bearer TOKEN`; otherwise the answer is 401. Bodies have a Content-Length
and are not encoded, so that any HTTP server that stores what it is sent can be a node.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

MAX_HEAD_BYTES = 4096
MOST_FIELDS = 128
"""The number of heads whose parsed fields are kept."""
END_OF_HEAD = b"\r\n\r\n"
_STRIPE_PATH = re.compile(rb"/stripes/([0-9a-f]{64})/([0-4])")
_REASONS = {
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    411: "Length Required",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
    507: "Insufficient Storage",
}


class BadHead(ValueError):
    """Not a head of HTTP/1.1 that this protocol has; with the status that says so."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Request(NamedTuple):
    """The head of a request."""

    method: bytes
    path: bytes
    body_bytes: int
    authorization: bytes
    expects_continue: bool


class Answer(NamedTuple):
    """The head of an answer."""

    status: int
    body_bytes: int
    closes: bool


class _Fields(NamedTuple):
    """What this protocol reads of a head's fields."""

    has_length: bool
    body_bytes: int
    authorization: bytes
    expects_continue: bool
    closes: bool


@functools.lru_cache
def _request_rest(host: str, token: str, body_bytes: int | None) -> bytes:
    lines = [" HTTP/1.1", f"Host: {host}"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    if body_bytes is not None:
        lines.append(f"Content-Length: {body_bytes}")
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def request_head(method: str, path: str, *, host: str, token: str = "", body_bytes: int | None = None) -> bytes:
    """The head of a request."""
    return f"{method} {path}".encode("ascii") + _request_rest(host, token, body_bytes)


@functools.lru_cache
def answer_head(status: int, body_bytes: int, *, closes: bool = False) -> bytes:
    """The head of an answer."""
    length = "" if status == 204 else f"Content-Length: {body_bytes}\r\n"
    close = "Connection: close\r\n" if closes else ""
    return f"HTTP/1.1 {status} {_REASONS[status]}\r\n{length}{close}\r\n".encode("ascii")


def stripe_path(name: bytes, number: int) -> str:
    """The path of a chunk's stripe on a node."""
    return f"/stripes/{name.hex()}/{number}"


def stripe_key(path: bytes) -> bytes | None:
    """The name and the number of a stripe's path, one after the other; None: it is another path."""
    match = _STRIPE_PATH.fullmatch(path)
    return bytes.fromhex(match[1].decode()) + bytes((int(match[2]),)) if match else None


def parse_request(head: bytes) -> Request:
    """The head, without the empty line at its end. Raises: BadHead."""
    line, _, lines = head.partition(b"\r\n")
    fields = _parse_fields(lines)
    first = line.split(b" ")
    if len(first) != 3 or first[2] != b"HTTP/1.1":
        raise BadHead(400, "not a request of HTTP/1.1")
    method, path, _ = first
    if method == b"PUT" and not fields.has_length:
        raise BadHead(411, "a PUT without Content-Length")
    return Request(method, path, fields.body_bytes, fields.authorization, fields.expects_continue)


@functools.lru_cache
def parse_answer(head: bytes) -> Answer:
    """The head, without the empty line at its end. Raises: BadHead."""
    line, _, lines = head.partition(b"\r\n")
    fields = _parse_fields(lines)
    first = line.split(b" ")
    if len(first) < 2 or not first[0].startswith(b"HTTP/1.") or not first[1].isdigit():
        raise BadHead(400, "not an answer of HTTP/1.1")
    status = int(first[1])
    if status != 204 and not fields.has_length:
        raise BadHead(411, "an answer without Content-Length")
    return Answer(status, fields.body_bytes, fields.closes or first[0] == b"HTTP/1.0")


@functools.lru_cache(MOST_FIELDS)
def _parse_fields(lines: bytes) -> _Fields:
    """The fields of one worker are the same in all its GETs, and in all its PUTs. Raises: BadHead."""
    headers: dict[bytes, bytes] = {}
    for line in lines.split(b"\r\n") if lines else ():
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise BadHead(400, "a malformed header")
        name = name.lower()
        if name in headers and name == b"content-length":
            raise BadHead(400, "two lengths")
        headers[name] = value.strip()
    if b"transfer-encoding" in headers:
        raise BadHead(411, "a body without Content-Length")
    return _Fields(
        b"content-length" in headers,
        _body_bytes(headers),
        headers.get(b"authorization", b""),
        headers.get(b"expect", b"").lower() == b"100-continue",
        headers.get(b"connection", b"").lower() == b"close",
    )


def _body_bytes(headers: dict[bytes, bytes]) -> int:
    text = headers.get(b"content-length", b"0")
    if not text.isdigit() or len(text) > 10:
        raise BadHead(400, "a malformed Content-Length")
    return int(text)
