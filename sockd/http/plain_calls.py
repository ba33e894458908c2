"""Calls as `/run` and the management API answer them: at once, in a new sandbox, or as an event.

Owns nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from sockd.base.errors import BadRequest, QueryNotTaken
from sockd.base.invoke_request import InvokeRequest
from sockd.base.request_ids import request_id_text
from sockd.http.server.exchange import answer_of
from sockd.http.server.messages.answers import Answer, accepted_fields, json_answer
from sockd.http.worker import Calls, Events

INVOCATION_TYPE = b"x-amz-invocation-type"
FRESH = b"x-sockd-fresh"


async def run(calls: Calls, request: InvokeRequest) -> Answer:
    """Invoke a function and write the answer or error."""
    text_id = request_id_text(request.id)
    try:
        return answer_of(await calls.invoke(request), text_id)
    except (asyncio.CancelledError, Exception) as error:
        return answer_of(error, text_id)


def is_fresh(asked: Mapping[bytes, bytes]) -> bool:
    """Whether a new sandbox is asked for. Raises: BadRequest."""
    value = asked.get(FRESH, b"0")
    if value not in (b"0", b"1"):
        raise BadRequest("X-Sockd-Fresh is 1 or 0")
    return value == b"1"


async def accepted(events: Events, request: InvokeRequest, *, source: str, retry_key: str = "") -> Answer:
    """Run a function asynchronously: 202 with the id of its attempts. Raises: SockdError."""
    if request.query:
        raise QueryNotTaken(request.name)
    if request.fresh:
        raise BadRequest("X-Sockd-Fresh is not possible for an asynchronous invocation, which runs in any sandbox")
    if request.expected is not None:
        raise BadRequest(
            "X-Sockd-If-Code is not possible for an asynchronous invocation, which runs the code that is deployed then"
        )
    event_id = await events.accept(
        request.name, request.qualifier, request.payload, source=source, retry_key=retry_key, trace=request.trace
    )
    return json_answer({"requestId": event_id}, 202).adding(accepted_fields(event_id, request.trace))
