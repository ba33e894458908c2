"""A test event: one invocation from the form of a function's page, and its outcome as values of a template.

`access` checks permission. Bounded: the form, and what is shown of the answer and of the log.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from starlette.requests import Request

from sockd.base.errors import FunctionFailed
from sockd.base.invoke_request import InvokeRequest
from sockd.base.request_ids import new_request_id, request_id_text
from sockd.base.spelling import size
from sockd.functions.serving.version import ANY_METHOD
from sockd.http.page import words
from sockd.http.page.forms import read_fields
from sockd.http.page.views import PHASES, Values
from sockd.http.worker_values import InvocationResult

MAX_FORM_BYTES = 256 << 10
"""The most bytes of a form as browsers encode it; `sockd invoke NAME -d @FILE` sends more."""
MAX_SHOWN_BYTES = 64 << 10
"""The most bytes that are shown of an answer, and of a log."""


class SentEvent(NamedTuple):
    """What the form says."""

    token: str
    qualifier: str
    """A version or an alias; empty: the version that was deployed last."""
    payload: str


async def read_form(request: Request) -> SentEvent:
    """The form of a request. Raises: BadRequest, RequestTooLarge, ClientDisconnect."""
    return SentEvent(*await read_fields(request, ("token", "qualifier", "event"), MAX_FORM_BYTES))


def invocation_of(name: str, event: SentEvent) -> InvokeRequest:
    """What the worker is asked."""
    request = InvokeRequest(name, event.payload.encode() or b"{}", new_request_id(), time.monotonic_ns())
    request.trigger, request.method, request.qualifier = "other", ANY_METHOD, event.qualifier
    return request


def outcome(request: InvokeRequest, result: InvocationResult) -> Values:
    """The values of `tested.html`."""
    error, times = result.error, result.invocation.times
    stack = "".join(error.stack_trace) if isinstance(error, FunctionFailed) else ""
    return {
        "name": request.name,
        "id": request_id_text(request.id),
        "event": request.payload.decode(),
        "qualifier": request.qualifier,
        "origin": result.invocation.origin,
        "is_cold": result.invocation.cold,
        "is_ok": error is None,
        "outcome": "ok" if error is None else error.error_type[:200],
        "error": "" if error is None else f"{error.error_type}: {error.message}\n" + (f"\n{stack}" if stack else ""),
        "answer": text_of(result.invocation.body) if error is None else "",
        "log": words.log_text(result.log, MAX_SHOWN_BYTES) if result.log else "",
        "total": words.ms(sum(getattr(times, phase) for phase in PHASES)),
        "memory": f"{size(result.peak_bytes)} of {result.memory_mb} MB" if result.peak_bytes else "",
    }


def text_of(answer: bytes) -> str:
    """The beginning of an answer, as text."""
    text = answer[:MAX_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return f"{text}\n… and {size(len(answer) - MAX_SHOWN_BYTES)} more" if len(answer) > MAX_SHOWN_BYTES else text
