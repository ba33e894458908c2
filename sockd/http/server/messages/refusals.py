"""Refusals: whole responses to what is turned away before the application sees it; the connection then closes."""

from __future__ import annotations

from http import HTTPStatus
from typing import NamedTuple

import msgspec

from sockd.base.errors import BuffersFull


class Refusal(NamedTuple):
    """One reason."""

    error_type: str
    """What it is counted under."""
    response: bytes
    status: int
    message: str


def refusal(status: int, error_type: str, message: str) -> Refusal:
    """A refusal, ready to be written before the connection closes. No log or trace has it: its request id is empty."""
    body = msgspec.json.encode({"errorType": error_type, "errorMessage": message, "requestId": ""})
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n{'retry-after: 1' + chr(13) + chr(10) if status == 503 else ''}"
        "connection: close\r\n\r\n"
    )
    return Refusal(error_type, head.encode() + body, status, message)


MALFORMED = refusal(400, "InvalidRequestContentException", "this is not an HTTP/1.1 request that has one meaning")
NO_SUCH_CODING = refusal(
    501,
    "NotImplementedException",
    "no transfer coding but chunked is offered; say Content-Encoding of what is compressed, and the function reads it",
)
NO_SUCH_VERSION = refusal(
    505,
    "HTTPVersionNotSupported",
    "only HTTP/1.1 and HTTP/1.0 are spoken here; for HTTP/2 put a proxy such as Caddy in front",
)
HEAD_TOO_LARGE = refusal(431, "RequestHeaderFieldsTooLarge", "the request line and headers are too large")
BODY_TOO_LARGE = refusal(413, "RequestTooLargeException", "the body goes on and on after it was refused")
TOO_SLOW = refusal(408, "RequestTimeout", "the request did not arrive in time")
NO_ROOM = refusal(503, "ServiceUnavailableException", BuffersFull().message)
TOO_MANY = refusal(503, "ServiceUnavailableException", "too many connections (http.max_connections)")
