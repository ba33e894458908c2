"""Encoding of answers: an invocation or an error as status, headers and JSON.

Owns nothing. Statuses and names come from the errors themselves; the shape of an error's body is that of AWS Lambda's
function errors: {errorType, errorMessage, requestId, stackTrace?}.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import traceback

import msgspec

from sockd.base.errors import (
    FunctionFailed,
    HostFailed,
    KeyNeeded,
    MethodNotAllowed,
    SockdError,
    StorageFull,
)
from sockd.base.telemetry import COLD, Invocation, TraceContext
from sockd.base.trace_context import amzn_of
from sockd.http.server.messages.fields import field

log = logging.getLogger("sockd.http")
_encode = msgspec.json.encode
_JSON = "content-type: application/json\r\n"
_HOSTS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EIO, errno.EROFS)
_HOSTS_IN_SQLITE = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY)
"""Errors of the host, not bugs of sockd: a resource is exhausted, or a device fails."""


class Answer(msgspec.Struct, frozen=True):
    """One response, whole. (A Struct, as one is made for every request.)"""

    status: int
    fields: str
    """The headers as lines, `name: value\\r\\n` each, without content-length; what in them is no constant is `field`'s."""
    body: bytes

    def adding(self, fields: str) -> Answer:
        """The same one, with more headers."""
        return Answer(self.status, self.fields + fields, self.body)


def json_answer(value: object, status: int = 200) -> Answer:
    """Any JSON-able value."""
    return Answer(status, _JSON, _encode(value))


def success(invocation: Invocation, request_id: str) -> Answer:
    """What the handler returned."""
    return Answer(200, _JSON + invocation_fields(invocation, request_id), invocation.body)


def failure(error: BaseException, request_id: str) -> Answer:
    """Make the answer to an error. A full disk can be met at any step, and so can a host that has no descriptors left. Any
    other exception that is not a SockdError is a bug of sockd: it is logged here, and answered without details."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        error = StorageFull()
    elif words := _of_the_host(error):
        log.error("request %s: %s: %s", request_id, type(error).__name__, error)
        error = HostFailed(words)
    elif not isinstance(error, SockdError):
        log.error("request %s: %s", request_id, "".join(traceback.format_exception(error)))
        error = SockdError(f"internal error; the worker's log names request {request_id}")
    # Frames have the request's body among their locals, and often the error: a cycle of megabytes until somebody collects it.
    error.__traceback__ = None
    if error.invocation is not None:
        fields = _JSON + invocation_fields(error.invocation, request_id)
    else:
        fields = f"{_JSON}x-amzn-requestid: {request_id}\r\nx-sockd-cold: 0\r\n"
    if error.retry_after_s is not None:
        fields += field("retry-after", error.retry_after_s)
    elif isinstance(error, KeyNeeded):
        fields += field("www-authenticate", error.challenge)
    elif isinstance(error, MethodNotAllowed):
        fields += field("allow", error.allow)
    return Answer(error.status, fields, error_body(error, request_id))


def _of_the_host(error: BaseException) -> str:
    """What the host did not give, in its words and without names of files; "" if that is not what went wrong."""
    if isinstance(error, OSError) and error.errno in _HOSTS:
        return f"{os.strerror(error.errno)} ({errno.errorcode[error.errno]})"
    if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF in _HOSTS_IN_SQLITE:
        return str(error)
    return "out of memory" if isinstance(error, MemoryError) else ""


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


def invocation_fields(invocation: Invocation, request_id: str) -> str:
    """The headers that tell of an invocation, whatever its answer is."""
    # In one piece: it is made for every request.
    trace = f"x-amzn-trace-id: {invocation.trace}\r\n" if invocation.trace else ""
    cold = f'cold;desc="{invocation.why}", ' if invocation.why else ""
    return (
        f"x-amzn-requestid: {request_id}\r\nx-sockd-cold: {'1' if invocation.origin in COLD else '0'}\r\n"
        f"x-sockd-origin: {invocation.origin}\r\nx-sockd-sandbox: {invocation.sandbox_id}\r\n{trace}"
        f"server-timing: {cold}{invocation.times.server_timing()}\r\n"
    )


def begun_fields(invocation: Invocation | None, request_id: str) -> str:
    """Return the header fields of an invocation that go with the first part of its answer: all but its content's type and
    its duration."""
    if invocation is None:
        return f"x-amzn-requestid: {request_id}\r\n"
    fields = invocation_fields(invocation, request_id)
    return f"{fields.rpartition(', exec;')[0]}\r\n"


def accepted_fields(event_id: str, trace: TraceContext | None) -> str:
    """The headers of an answer to an asynchronous invocation. Args: trace: the caller's, of which its attempts are a part."""
    fields = f"x-amzn-requestid: {event_id}\r\n"
    return fields if trace is None else fields + field("x-amzn-trace-id", amzn_of(trace))
