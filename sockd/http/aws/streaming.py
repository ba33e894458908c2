"""InvokeWithResponseStream: the answer as an event stream.

    PayloadChunk …   what the function streams; of one that answers at once, its answer
    InvokeComplete   {"ErrorCode"?, "ErrorDetails"?, "LogResult"?}: how it ended, also after pieces have gone out

What never ran is an error as of any operation; what ran and failed is in InvokeComplete. A retry of the SDK's runs again: an
answer that has been passed on piece by piece is not there to be given twice.
"""

from __future__ import annotations

import asyncio

import msgspec

from sockd.base.errors import SockdError
from sockd.base.request_ids import request_id_text
from sockd.base.telemetry import Invocation
from sockd.functions.registry.aliases import LATEST
from sockd.http.aws.errors import ValidationFailed
from sockd.http.aws.event_stream import CONTENT_TYPE, message
from sockd.http.aws.invoke import FUNCTION_ERRORS, error_payload, executed, log_type_of, request_of
from sockd.http.aws.log_tail import log_tail
from sockd.http.aws.operations import Call, Result, Table
from sockd.http.aws.routes import Operation
from sockd.http.server.exchange import Exchange
from sockd.http.server.messages.answers import Answer, invocation_fields
from sockd.http.server.streamed import StreamedAnswer
from sockd.http.worker import Worker

INLINE_BYTES = 512 * 1024
"""The most bytes of an answer whose checksum is taken on the loop: half a millisecond."""


class EventStream(StreamedAnswer):
    """A streamed answer whose pieces become events. The format has no place for the function's own status and headers."""

    can_switch = False

    async def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        version = self.begun.version if self.begun is not None else LATEST
        fields = [(b"content-type", CONTENT_TYPE.encode()), (b"x-amz-executed-version", version.encode())]
        await super().head(200, fields)

    async def chunk(self, data: bytes) -> None:
        if data:
            await super().chunk(payload_chunk(data))

    async def complete(self, ending: dict[str, str]) -> None:
        """The last event."""
        await super().chunk(invoke_complete(ending))
        self.close(Answer(200, "", b""))


class StreamingOperations:
    """The one operation."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def table(self) -> Table:
        """As `Operations.table`."""
        return {Operation.INVOKE_WITH_RESPONSE_STREAM: self._invoke}

    async def _invoke(self, call: Call) -> Result:
        """An answer; of one that has been written already, what is not looked at any more."""
        request, text_id = request_of(call), request_id_text(call.request_id)
        kind = call.headers.get("x-amz-invocation-type", "RequestResponse")
        tail = log_type_of(call.headers) == "Tail"
        if kind not in ("RequestResponse", "DryRun"):
            raise ValidationFailed(
                kind, "invocationType", "Member must satisfy enum value set: [RequestResponse, DryRun]"
            )
        if kind == "DryRun":
            version = self._worker.functions.details(request.name, request.qualifier).version
            return Answer(204, f"x-amzn-requestid: {text_id}\r\n{executed(version)}", b"")
        assert isinstance(call.exchange, Exchange)
        stream = request.sink = EventStream(call.exchange, call.request_id)
        request.gone = call.exchange.gone
        ending: dict[str, str] = {}
        invocation: Invocation | None = None
        try:
            if tail:
                outcome = await self._worker.calls.invoke_with_log(request)
                ending["LogResult"] = log_tail(outcome, text_id)
                invocation = outcome.invocation
                if outcome.error is not None:
                    raise outcome.error
            else:
                invocation = await self._worker.calls.invoke(request)
        except SockdError as error:
            if not isinstance(error, FUNCTION_ERRORS) and not stream.started:
                raise
            invocation = invocation or error.invocation
            ending = {"ErrorCode": "Unhandled", "ErrorDetails": error_payload(error, text_id).decode(), **ending}
        if stream.started:
            await stream.complete(ending)
            return Answer(200, "", b"")
        if invocation is not None and len(invocation.body) > INLINE_BYTES:
            return await asyncio.to_thread(_whole, invocation, ending, text_id)
        return _whole(invocation, ending, text_id)


def payload_chunk(data: bytes) -> bytes:
    """A piece of the answer."""
    return message("PayloadChunk", data, "application/octet-stream")


def invoke_complete(ending: dict[str, str]) -> bytes:
    """How it ended."""
    return message("InvokeComplete", msgspec.json.encode(ending), "application/json")


def _whole(invocation: Invocation | None, ending: dict[str, str], request_id: str) -> Answer:
    """The events of a function that did not stream."""
    fields = f"content-type: {CONTENT_TYPE}\r\n{executed(invocation.version if invocation else LATEST)}"
    fields += f"x-amzn-requestid: {request_id}\r\n" if invocation is None else invocation_fields(invocation, request_id)
    answered = invocation is not None and "ErrorCode" not in ending
    events = payload_chunk(invocation.body) if invocation is not None and answered and invocation.body else b""
    return Answer(200, fields, events + invoke_complete(ending))
