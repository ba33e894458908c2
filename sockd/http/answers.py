"""Answers: an invocation or an error, as status, headers and JSON.

Owns nothing. Statuses and names come from the errors themselves; the shape of an error's body is that of AWS Lambda's
function errors: {errorType, errorMessage, requestId, stackTrace?}.
"""

from __future__ import annotations

import logging
import traceback
from typing import NamedTuple

import msgspec

from sockd.errors import FunctionFailed, NoCapacity, SockdError, TooManyRequests
from sockd.telemetry import Invocation

Headers = list[tuple[bytes, bytes]]

log = logging.getLogger("sockd.http")
_encode = msgspec.json.encode
_JSON = (b"content-type", b"application/json")


class Answer(NamedTuple):
    """One response, whole."""

    status: int
    headers: Headers
    body: bytes


def json_answer(value: object, status: int = 200) -> Answer:
    """Any JSON-able value."""
    body = _encode(value)
    return Answer(status, [_JSON, (b"content-length", b"%d" % len(body))], body)


def success(invocation: Invocation, request_id: str) -> Answer:
    """What the handler returned."""
    body = invocation.body
    headers = [
        _JSON,
        (b"content-length", b"%d" % len(body)),
        (b"x-amzn-requestid", request_id.encode()),
        *_invocation_headers(invocation),
    ]
    return Answer(200, headers, body)


def failure(error: BaseException, request_id: str) -> Answer:
    """What went wrong. An exception that is not a SockdError is a bug of ours: logged here, told without details."""
    if not isinstance(error, SockdError):
        log.error("request %s: %s", request_id, "".join(traceback.format_exception(error)))
        error = SockdError(f"internal error; the worker's log names request {request_id}")
    body = error_body(error, request_id)
    headers = [_JSON, (b"content-length", b"%d" % len(body)), (b"x-amzn-requestid", request_id.encode())]
    invocation: Invocation | None = getattr(error, "invocation", None)
    headers += _invocation_headers(invocation) if invocation else [(b"x-sockd-cold", b"0")]
    if isinstance(error, TooManyRequests):
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    elif isinstance(error, NoCapacity):
        headers.append((b"retry-after", b"1"))
    return Answer(error.status, headers, body)


def error_body(error: SockdError, request_id: str) -> bytes:
    """The JSON of an error."""
    fields: dict[str, object] = {
        "errorType": error.error_type,
        "errorMessage": error.message,
        "requestId": request_id,
    }
    if isinstance(error, FunctionFailed):
        fields["stackTrace"] = error.stack_trace
    try:
        return _encode(fields)
    except UnicodeEncodeError:
        # A handler may raise with lone surrogates (file names decoded by surrogateescape): no UTF-8 has them.
        return _encode(_without_surrogates(fields))


def _without_surrogates(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_surrogates(item) for key, item in value.items()}
    return value


def _invocation_headers(invocation: Invocation) -> Headers:
    return [
        (b"x-sockd-cold", b"1" if invocation.cold else b"0"),
        (b"x-sockd-origin", invocation.origin.encode()),
        (b"x-sockd-sandbox", invocation.sandbox_id.encode()),
        (b"server-timing", invocation.times.server_timing().encode()),
    ]
