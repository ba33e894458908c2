"""Invoke: its differences from `/run` in headers, statuses and log.

A function that fails is an answer with status 200 and the header `X-Amz-Function-Error`. Pure but for the invocation.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from sockd.base.errors import FunctionFailed, SandboxDied, SockdError, TimedOut
from sockd.base.invoke_request import InvokeRequest
from sockd.base.request_ids import request_id_text
from sockd.base.telemetry import Invocation
from sockd.base.trace_context import of_mapping
from sockd.functions.registry.aliases import LATEST
from sockd.http.aws.errors import InvalidRequestContent, ValidationFailed
from sockd.http.aws.log_tail import log_tail
from sockd.http.aws.names import function_named
from sockd.http.aws.operations import Call, Result, Table
from sockd.http.aws.routes import Operation
from sockd.http.server.messages.answers import Answer, accepted_fields, error_body, failure, success
from sockd.http.server.messages.fields import field
from sockd.http.worker import Worker

CLIENT_CONTEXT_CHARS = 3583
_FUNCTION_ERROR = "x-amz-function-error: Unhandled\r\n"
FUNCTION_ERRORS = (FunctionFailed, SandboxDied, TimedOut)
"""What is the function's own failure. Everything else is the service's."""


class InvokeOperations:
    """Invoke, now or later."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def table(self) -> Table:
        """As `Operations.table`."""
        return {Operation.INVOKE: self._invoke, Operation.INVOKE_ASYNC: self._invoke_async}

    async def _invoke(self, call: Call) -> Result:
        return await invoke(self._worker, request_of(call), call.headers)

    async def _invoke_async(self, call: Call) -> Result:
        """What Invoke's type Event was before there were types."""
        accepted = await accept(self._worker, request_of(call), call.headers)
        return Answer(202, f"{accepted.fields}content-type: application/json\r\n", b'{"Status":202}')


def request_of(call: Call) -> InvokeRequest:
    """What a call of one of the invoke operations asks for. Raises: SockdError."""
    named = function_named(call.segment, call.parameter("Qualifier"))
    request = InvokeRequest(named.name, bytes(call.body) or b"{}", call.request_id, call.arrived_ns)
    if call.exchange is not None and call.exchange.held is not None:
        call.exchange.request = request
    request.trigger, request.trace = "other", of_mapping(call.headers)
    if named.qualifier:
        request.qualifier, request.retried_as = named.qualifier, call_id(call.headers)
        request.details = {"arn": named.arn}
    if "x-amz-client-context" in call.headers:
        context = client_context(call.headers["x-amz-client-context"])
        request.details = {**(request.details or {}), "client_context": context}
    return request


def log_type_of(headers: Mapping[str, str]) -> str:
    """Whether the log is asked for: None or Tail. Raises: ValidationFailed."""
    log_type = headers.get("x-amz-log-type", "None")
    if log_type not in ("None", "Tail"):
        raise ValidationFailed(log_type, "logType", "Member must satisfy enum value set: [None, Tail]")
    return log_type


async def invoke(worker: Worker, request: InvokeRequest, headers: Mapping[str, str]) -> Answer:
    """Run a function, or see whether one could (DryRun). Raises: SockdError, if it was not run."""
    kind = headers.get("x-amz-invocation-type", "RequestResponse")
    if kind == "Event":
        return await accept(worker, request, headers)
    if kind not in ("RequestResponse", "DryRun"):
        raise ValidationFailed(
            kind, "invocationType", "Member must satisfy enum value set: [RequestResponse, Event, DryRun]"
        )
    log_type = log_type_of(headers)
    text_id = request_id_text(request.id)
    if kind == "DryRun":
        version = worker.functions.details(request.name, request.qualifier).version
        return Answer(204, f"x-amzn-requestid: {text_id}\r\n{executed(version)}", b"")
    if log_type == "Tail":
        result = await worker.calls.invoke_with_log(request)
        answer = _function_error(result.error, text_id) if result.error else _succeeded(result.invocation, text_id)
        return answer.adding(field("x-amz-log-result", log_tail(result, text_id)))
    try:
        invocation = await worker.calls.invoke(request)
    except FUNCTION_ERRORS as error:
        return _function_error(error, text_id)
    return _succeeded(invocation, text_id)


async def accept(worker: Worker, request: InvokeRequest, headers: Mapping[str, str]) -> Answer:
    """Have a function run later: 202, whose id is that of its attempts. Raises: SockdError."""
    retry_key = headers.get("amz-sdk-invocation-id", "")
    event_id = await worker.events.accept(
        request.name, request.qualifier, request.payload, source="aws", retry_key=retry_key, trace=request.trace
    )
    return Answer(202, accepted_fields(event_id, request.trace), b"")


def client_context(header: str) -> Any:
    """The JSON in a ClientContext. Raises: InvalidRequestContent."""
    if len(header) > CLIENT_CONTEXT_CHARS:
        raise InvalidRequestContent(
            f"Client context must be no longer than {CLIENT_CONTEXT_CHARS} characters of base64"
        )
    try:
        return msgspec.json.decode(base64.b64decode(header, validate=True))
    except (ValueError, RecursionError):
        raise InvalidRequestContent("Client context must be a valid Base64-encoded JSON object.") from None


def executed(version: str) -> str:
    """The header that tells which version ran."""
    return field("x-amz-executed-version", version)


def call_id(headers: Mapping[str, str]) -> bytes:
    """What the tries of an SDK for one call have in common; empty if it does not say."""
    sdk_id = headers.get("amz-sdk-invocation-id")
    return hashlib.blake2b(sdk_id.encode(), digest_size=8).digest() if sdk_id else b""


def _succeeded(invocation: Invocation, request_id: str) -> Answer:
    answer = success(invocation, request_id)
    return answer.adding(executed(invocation.version))


def _function_error(error: SockdError, request_id: str) -> Answer:
    """Raises: the error, when it is not the function's."""
    if not isinstance(error, FUNCTION_ERRORS):
        raise error
    answer = failure(error, request_id)
    version = error.invocation.version if error.invocation else LATEST
    return Answer(200, answer.fields + executed(version) + _FUNCTION_ERROR, error_payload(error, request_id))


def error_payload(error: SockdError, request_id: str) -> bytes:
    """An error as the payload of an answer, JSON."""
    if isinstance(error, FunctionFailed):
        return error_body(error, request_id)
    words = error.words if isinstance(error, TimedOut) else error.message
    message = f"RequestId: {request_id} Error: {words}"
    return msgspec.json.encode({"errorType": error.error_type, "errorMessage": message})
