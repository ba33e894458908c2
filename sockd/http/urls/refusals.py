"""Errors of function URLs: AWS's statuses and bodies.

Pure except for the log of bugs. Any client may call a URL, so an error of the function shows only its type, in `x-sockd-error`;
message and frames are in the function's log."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from sockd.base.errors import (
    FunctionFailed,
    NoSuchFunction,
    RequestTooLarge,
    SandboxDied,
    SockdError,
    TimedOut,
    TooManyRequests,
)
from sockd.http.access.signatures import AccessDenied
from sockd.http.server.messages.answers import Answer, failure, invocation_fields
from sockd.http.server.messages.fields import field
from sockd.http.urls.response import BadReply

FUNCTION_ERRORS = (FunctionFailed, SandboxDied, TimedOut, BadReply)
"""What is the function's own failure. Everything else is the service's."""
_FORBIDDEN = (
    "Forbidden. For troubleshooting Function URL authorization issues, see: "
    "https://docs.aws.amazon.com/lambda/latest/dg/urls-auth.html"
)
_JSON = "content-type: application/json\r\n"
_NOT_IN_A_TYPE = re.compile(r"[^A-Za-z0-9_.:-]")
_TYPE_CHARS = 128


class Forbidden(AccessDenied):
    """The URL requires a signature, and this request has no valid one; or its function's policy does not open it."""

    def __init__(self) -> None:
        super().__init__(_FORBIDDEN)


def refusal(error: Exception, request_id: str) -> Answer:
    """The answer to a request that no function has answered."""
    plain = failure(error, request_id)  # logs a bug of ours, recognises a full disk
    if not isinstance(error, SockdError):
        return _service(plain.status, "ServiceException", request_id, {"Message": "Internal Server Error"})
    if isinstance(error, FUNCTION_ERRORS):
        known = "" if error.invocation is None else invocation_fields(error.invocation, request_id)
        fields = known or f"x-amzn-requestid: {request_id}\r\n"
        kind = field("x-sockd-error", _type(error.error_type))
        return Answer(502, f"content-type: text/plain\r\n{fields}{kind}", b"Internal Server Error")
    if isinstance(error, NoSuchFunction):
        return _service(403, AccessDenied.error_type, request_id, {"Message": None})
    if isinstance(error, TooManyRequests):
        body = {"Reason": error.reason, "Type": "User", "message": "Rate Exceeded."}
        answer = _service(429, error.error_type, request_id, body)
        return answer.adding(field("retry-after", error.retry_after_s))
    if error.status < 500:
        body = {"Message": error.message}
        if isinstance(error, RequestTooLarge):
            body = {"Type": "User", "message": error.message}
        return _service(error.status, error.error_type, request_id, body)
    answer = _service(503, error.error_type, request_id, {"Message": error.message})
    return answer.adding(field("retry-after", error.retry_after_s or 1))


def _service(status: int, kind: str, request_id: str, body: Mapping[str, str | None]) -> Answer:
    fields = (
        f"{_JSON}x-amzn-requestid: {request_id}\r\n" + field("x-amzn-errortype", kind) + field("x-sockd-error", kind)
    )
    return Answer(status, fields, msgspec.json.encode(body))


def _type(error_type: str) -> str:
    """A type's name as a header can say it: it is the function's word."""
    return _NOT_IN_A_TYPE.sub("?", error_type[:_TYPE_CHARS]) or "?"
