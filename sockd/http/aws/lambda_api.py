"""The application of this API: serves requests with AWS's paths.

Owns the bodies that are being read. An operation runs once for all retries of an SDK, which share an id
(`sockd.http.replays`).
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs

import msgspec

from sockd.base.config import Config
from sockd.base.errors import BadRequest, RequestTooLarge, SockdError
from sockd.base.function_arns import arn
from sockd.base.request_ids import new_request_id, request_id_text
from sockd.base.sigv4.canonical import SignedRequest
from sockd.functions.registry.aliases import LATEST
from sockd.http.access.callers import Callers
from sockd.http.access.host_check import CrossSite, ForbiddenHost, HostCheck, may_come_from
from sockd.http.aws.access import Access
from sockd.http.aws.aliases import AliasOperations
from sockd.http.aws.archives import CodeTooLarge
from sockd.http.aws.concurrency import ConcurrencyOperations
from sockd.http.aws.constants import ConstantOperations
from sockd.http.aws.errors import refusal
from sockd.http.aws.event_config import EventConfigOperations
from sockd.http.aws.functions import FunctionOperations
from sockd.http.aws.invoke import InvokeOperations
from sockd.http.aws.names import function_named
from sockd.http.aws.operations import Call, Changes, gather
from sockd.http.aws.policies import PolicyOperations
from sockd.http.aws.provisioned import ProvisionedOperations
from sockd.http.aws.refused_members import check_parameters
from sockd.http.aws.routes import EVENTS, UPLOADS, Operation, route
from sockd.http.aws.streaming import StreamingOperations
from sockd.http.aws.tags import TagOperations
from sockd.http.aws.urls import UrlOperations
from sockd.http.aws.versions import VersionOperations
from sockd.http.replays import Replays
from sockd.http.server.connection import Connection
from sockd.http.server.exchange import Exchange, why_cancelled
from sockd.http.server.messages.answers import Answer
from sockd.http.server.messages.body import Body
from sockd.http.server.messages.head import Head
from sockd.http.server.states import DROP_BODY, UNBEGUN
from sockd.http.worker import Worker

SETTINGS_BYTES = 256 * 1024
"""The most bytes of a body without code; an environment has 4 KB at most."""
_HASHED_AT_ONCE = 64 * 1024
_SDK_ID_CHARS = 128


class Admitted(NamedTuple):
    """A request with a valid head."""

    operation: Operation
    segments: tuple[str, ...]
    signed: SignedRequest
    """The parts that a signature covers."""
    max_body_bytes: int
    is_upload: bool

    @property
    def retried_as(self) -> tuple[str, ...] | None:
        """What a retry of this request has in common with it, but for the body; None if an SDK did not say, and for an
        answer that cannot be given twice."""
        headers = self.signed.headers
        sdk_id = headers.get("amz-sdk-invocation-id")
        if sdk_id is None or len(sdk_id) > _SDK_ID_CHARS or self.operation is Operation.INVOKE_WITH_RESPONSE_STREAM:
            return None
        meaning = (headers.get(name, "") for name in ("x-amz-invocation-type", "x-amz-log-type"))
        return (sdk_id, self.signed.method, self.signed.path, self.signed.query, *meaning)


class LambdaApi:
    """A part of the front's application."""

    def __init__(
        self,
        worker: Worker,
        access: Access,
        config: Config,
        tmp: Path,
        callers: Callers | None = None,
        replays: Replays | None = None,
    ) -> None:
        """Args: tmp: a directory for uploads, on the disk of the state directory; callers: who may call without a signature;
        replays: those of `/run`; None: its own."""
        self._worker = worker
        self._access = access
        self._callers = callers or Callers(config.http)
        self._config = config.http
        self._hosts = HostCheck(config.http.listen)
        self._max_payload_bytes = config.http.max_payload_bytes
        self._max_zip_bytes = config.code.max_zip_bytes
        changes = Changes()
        self.operations = gather(
            (
                AliasOperations(worker, changes),
                FunctionOperations(worker, changes, config.code, tmp),
                ConcurrencyOperations(worker, changes, config.code),
                TagOperations(worker, changes),
                UrlOperations(worker, changes, config),
                PolicyOperations(worker, changes),
                ConstantOperations(worker),
                InvokeOperations(worker),
                StreamingOperations(worker),
                EventConfigOperations(worker),
                ProvisionedOperations(worker, changes),
                VersionOperations(worker, changes),
            )
        )
        self.replays = replays if replays is not None else Replays(config.http)

    def open(self, connection: Connection, head: Head) -> Exchange:
        """As `Application.open`."""
        return LambdaExchange(connection, head, self)

    def admit(self, head: Head) -> Admitted:
        """Judge a request by its head. Raises: SockdError."""
        headers: dict[str, str] = {}
        for raw_name, raw_value in head.headers:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]},{value}" if name in headers else value
        if "host" not in headers:
            raise BadRequest("a Host header is needed, as in HTTP/1.1")
        # A page that points its own name here cannot sign; a proxy must keep the name, which the signature covers.
        if not self._access.has_keys and not self._hosts.allows(headers["host"].encode("latin-1")):
            raise ForbiddenHost("this worker listens on loopback and answers to localhost, 127.0.0.1 and [::1] only")
        if not may_come_from(headers.get("sec-fetch-site", "").encode("latin-1"), head.method, self._config):
            raise CrossSite
        path, query = (part.decode("latin-1") for part in head.path_and_query())
        method = head.method.decode()
        operation, segments = route(method, path, query)
        self._access.check_head(operation, headers)
        if operation in EVENTS and not self._access.has_keys:
            self._callers.check_unsigned(function_named(segments[0]).name)
        limit, is_upload = SETTINGS_BYTES, False
        if operation in EVENTS:
            limit = self._max_payload_bytes
        elif operation in UPLOADS:
            limit, is_upload = SETTINGS_BYTES + (self._max_zip_bytes + 2) // 3 * 4, True
        admitted = Admitted(operation, segments, SignedRequest(method, path, query, headers), limit, is_upload)
        if head.content_length() > limit:
            raise self.too_large(admitted)
        return admitted

    def too_large(self, admitted: Admitted) -> SockdError:
        """The error of a body over its limit."""
        if admitted.is_upload:
            return CodeTooLarge(self._max_zip_bytes)
        return RequestTooLarge(
            f"Request must be smaller than {admitted.max_body_bytes} bytes for the {admitted.operation.value} operation"
        )

    async def answer(self, admitted: Admitted, body: bytes | bytearray, exchange: LambdaExchange) -> Answer:
        """Verify a request and run its operation, once for all retries. Never raises.

        Args: exchange: may have been answered when this returns; its stage says so."""
        request_id = new_request_id()
        try:
            if len(body) > _HASHED_AT_ONCE:
                await asyncio.to_thread(self._access.signatures.check, admitted.signed, body)
            else:
                self._access.signatures.check(admitted.signed, body)
            key = admitted.retried_as
            if key is None:
                return await self._run(admitted, body, request_id, exchange)
            if admitted.operation in EVENTS:
                # Of what creates or removes the function, a retry is to find its answer all the same.
                key = (*key, self._incarnation(admitted))
            return await self.replays.once(
                key, body, lambda: self._run(admitted, body, request_id, exchange), strict=False
            )
        except asyncio.CancelledError as error:
            # The server cancels when its drain is over: better an answer than a connection that just closes.
            why = why_cancelled(error, "the worker stopped before the operation had ended")
            return refusal(why, request_id_text(request_id))
        except Exception as error:
            return refusal(error, request_id_text(request_id))

    def _incarnation(self, admitted: Admitted) -> str:
        query = parse_qs(admitted.signed.query, keep_blank_values=True, max_num_fields=100)
        try:
            named = function_named(admitted.segments[0], query.get("Qualifier", [None])[0])
            return self._worker.calls.incarnation(named.name, named.qualifier or "")
        except SockdError:
            return ""  # the operation will say what is wrong

    async def _run(
        self, admitted: Admitted, body: bytes | bytearray, request_id: bytes, exchange: LambdaExchange
    ) -> Answer:
        text_id, function_arn = request_id_text(request_id), ""
        signed = admitted.signed
        query = parse_qs(signed.query, keep_blank_values=True, max_num_fields=100)
        call = Call(admitted.segments, query, signed.headers, body, request_id, exchange.arrived_ns, exchange)
        try:
            check_parameters(call.headers, call.query)
            if call.segment:
                name, qualifier = function_named(call.segment, call.parameter("Qualifier"))
                function_arn = arn(name, qualifier or LATEST)
            result = await self.operations[admitted.operation](call)
        except Exception as error:
            return refusal(error, text_id, function_arn)
        if isinstance(result, Answer):
            return result
        status, content = result
        return Answer(
            status,
            f"content-type: application/json\r\nx-amzn-requestid: {text_id}\r\n",
            b"" if content is None else msgspec.json.encode(content),
        )


class LambdaExchange(Exchange):
    """One request: checked by its head, then run when its body is complete."""

    def __init__(self, connection: Connection, head: Head, api: LambdaApi) -> None:
        super().__init__(connection, head)
        self.arrived_ns = time.monotonic_ns()
        self._api = api
        self._body = Body()
        self._target: Admitted | SockdError
        try:
            self._target = api.admit(head)
            self.max_body_bytes = self._target.max_body_bytes
        except SockdError as error:
            self.refuse(error)

    def refuse(self, error: SockdError) -> None:
        self._target = error
        self._body = Body()
        self.payload = DROP_BODY[self.payload]

    def on_body(self, data: bytes) -> None:
        admitted = self._target
        assert isinstance(admitted, Admitted)
        self._body.add(data)
        if self._body.size > admitted.max_body_bytes:
            self.refuse(self._api.too_large(admitted))

    async def run(self) -> None:
        target = self._target
        if isinstance(target, Admitted):
            answer = await self._api.answer(target, await self._body.whole(), self)
        else:
            answer = refusal(target, request_id_text(new_request_id()))
        if self.stage not in UNBEGUN:
            return  # it streamed
        if answer.status == 204:
            # No content-length: RFC 9110, 8.6.
            self.connection.write(f"{self.begin(204, answer.fields)}\r\n".encode("latin-1"), b"")
            self.connection.finish(self)
        else:
            self.answer(answer)
