"""The head of an HTTP/1.1 response: bytes to a value, or a reason why not. Sans-IO.

Stricter than most clients: what two readers could understand differently is refused. Owns nothing.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from sockd_initscripts.rpc.base import protocol_error

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\x00-\x08\x0a-\x1f\x7f]*)?")
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_MAX_LENGTH_DIGITS = 15


class Head(NamedTuple):
    """One response, as far as its head says."""

    status: int
    headers: dict[str, str]
    """Names in lower case; the values of a repeated one are joined by ', '."""
    length: int | None
    """The length of the body in bytes; None if the head does not say."""
    chunked: bool
    keep_alive: bool


def parse_head(data: bytes) -> Head:
    """From the status line to before the empty line. Raises: RpcFailed (protocol)."""
    first, *lines = data.split(b"\r\n")
    status_line = _STATUS_LINE.fullmatch(first)
    if status_line is None:
        raise protocol_error(f"not a status line: {first[:80]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        raw_name, colon, raw_value = line.partition(b":")
        if not colon or not _NAME.fullmatch(raw_name) or b"\n" in line or b"\r" in line or b"\0" in line:
            raise protocol_error(f"not a header: {line[:80]!r}")
        name, value = raw_name.decode("ascii").lower(), raw_value.strip(b" \t").decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    coding = headers.get("transfer-encoding")
    if coding is not None and (coding.lower() != "chunked" or "content-length" in headers):
        raise protocol_error(f"transfer-encoding {coding[:80]!r}, or a length with it")
    connection = headers.get("connection", "").lower()
    keep_alive = "close" not in connection if status_line[1] == b"1" else "keep-alive" in connection
    return Head(int(status_line[2]), headers, _length(headers), coding is not None, keep_alive)


def _length(headers: dict[str, str]) -> int | None:
    text = headers.get("content-length")
    if text is None:
        return None
    values = set(text.split(", "))
    digits = values.pop()
    if values or not (digits.isascii() and digits.isdigit()) or len(digits) > _MAX_LENGTH_DIGITS:
        raise protocol_error(f"content-length {text[:80]!r}")
    return int(digits)
