"""The application of function URLs.

Owns the bodies that are being read. A request is checked by its head (URL, size, signature, preflight), and invoked when its
body is complete."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from sockd.base.config import Config
from sockd.base.errors import BadRequest, RequestTooLarge, SockdError
from sockd.base.function_arns import arn
from sockd.base.invoke_request import InvokeRequest
from sockd.base.request_ids import new_request_id, request_id_text
from sockd.base.sigv4.canonical import SignedRequest
from sockd.base.trace_context import of_headers
from sockd.functions.registry.function_url import FunctionUrl
from sockd.functions.serving.version import ANY_METHOD
from sockd.http.access.host_check import ForbiddenHost, HostCheck, NoServiceWorkers
from sockd.http.access.signatures import AccessDenied, Signatures
from sockd.http.server.apps.app_request import app_request
from sockd.http.server.connection import Connection
from sockd.http.server.exchange import Exchange, why_cancelled
from sockd.http.server.messages.answers import Answer, invocation_fields
from sockd.http.server.messages.body import Body
from sockd.http.server.messages.head import Head
from sockd.http.server.states import DROP_BODY, Stage
from sockd.http.url_names import PATH_PREFIX, UrlNames
from sockd.http.urls.addressed import Addressed, addressed
from sockd.http.urls.cors import is_preflight, preflight, with_cors
from sockd.http.urls.event import UrlRequest, event
from sockd.http.urls.refusals import Forbidden, refusal
from sockd.http.urls.response import Fields, lines, reply
from sockd.http.urls.streams import Buffered, UrlStream
from sockd.http.worker import Worker

INLINE_BYTES = 128 * 1024
"""The most bytes of a body that is made or read on the loop: half a millisecond."""
EVENT_BYTES = 64 * 1024
"""The most bytes of an event beyond its body: the head, twice."""
SANDBOXED = ("content-security-policy", "sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads")
"""For what a function answers under a path of this port: its pages are strangers to the port's own origin."""
_NO_BODY = (204, 304)

T = TypeVar("T")


class Admitted(NamedTuple):
    """A request to a URL that exists."""

    url: FunctionUrl
    addressed: Addressed
    signed: SignedRequest
    """The parts that a signature covers."""


class UrlApi:
    """A part of the front's application."""

    def __init__(self, worker: Worker, signatures: Signatures, config: Config) -> None:
        """Raises: BadConfig."""
        self._worker = worker
        self._signatures = signatures
        self._names = UrlNames(config.function_urls.domain)
        self._hosts = HostCheck(config.http.listen)
        self.max_body_bytes = config.http.max_payload_bytes

    def addressed(self, head: Head) -> Addressed | None:
        """Whom a request is for; None: it is none of this API's."""
        return addressed(self._names, head)

    def open(self, connection: Connection, head: Head, addressed: Addressed) -> Exchange:
        """As `Application.open`."""
        return UrlExchange(connection, head, self, addressed)

    def admit(self, head: Head, addressed: Addressed) -> Admitted:
        """Judge a request by its head. Raises: SockdError."""
        headers: dict[str, str] = {}
        for raw_name, raw_value in head.headers:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            if name == "host" and name in headers:
                raise BadRequest("more than one Host header")
            headers[name] = f"{headers[name]},{value}" if name in headers else value
        if "host" not in headers:
            raise BadRequest("a Host header is needed, as in HTTP/1.1")
        if addressed.by_path and not self._hosts.allows(headers["host"].encode("latin-1")):
            raise ForbiddenHost("this worker listens on loopback and answers to localhost, 127.0.0.1 and [::1] only")
        if addressed.by_path and "service-worker" in headers:
            raise NoServiceWorkers
        url = self._worker.urls.find(addressed.id)
        path, query = (part.decode("latin-1") for part in head.path_and_query())
        admitted = Admitted(url, addressed, SignedRequest(head.method.decode(), path, query, headers))
        if not self._may_be_open(url, admitted.signed) and not self.preflight(admitted):
            raise Forbidden()
        if head.content_length() > self.max_body_bytes:
            raise self.too_large()
        return admitted

    def _may_be_open(self, url: FunctionUrl, request: SignedRequest) -> bool:
        """Whether a request may be answered, as far as its head tells."""
        if url.auth == "AWS_IAM":
            return _says_signed(request)
        return self._worker.urls.policies.of(url.name, url.qualifier).opens_urls

    def preflight(self, admitted: Admitted) -> bool:
        """Whether this API answers instead of the function."""
        return admitted.url.cors is not None and is_preflight(admitted.signed.method, admitted.signed.headers)

    def too_large(self) -> SockdError:
        """The error of a body over the limit."""
        return RequestTooLarge(
            f"Request must be smaller than {self.max_body_bytes} bytes for the InvokeFunction operation"
        )

    async def answer(self, admitted: Admitted, exchange: UrlExchange, body: bytes) -> None:
        """Verify a request, run its function, and answer. Never raises."""
        request_id = new_request_id()
        text_id = request_id_text(request_id)
        cors = admitted.url.cors
        if cors is not None and self.preflight(admitted):
            allowed = preflight(cors, admitted.signed.headers)
            exchange.answer(Answer(200, f"x-amzn-requestid: {text_id}\r\n{lines(allowed)}", b""))
            return
        sink = self._sink(admitted, exchange, request_id)
        try:
            request = await self._request(admitted, exchange, body, text_id)
            answer = await self._invoke(admitted, request, exchange, body, request_id, sink)
        except asyncio.CancelledError as error:
            # The server cancels when its drain is over: better an answer than a connection that just closes.
            answer = refusal(why_cancelled(error, "the worker stopped before the function had answered"), text_id)
        except Exception as error:
            answer = refusal(error, text_id).adding(lines(shaped(admitted, [])))
        if isinstance(sink, UrlStream):
            await sink.finish(answer)
        else:
            exchange.answer(answer)

    def _sink(self, admitted: Admitted, exchange: UrlExchange, request_id: bytes) -> UrlStream | Buffered:
        """Who takes an answer that comes piece by piece."""
        if admitted.url.mode == "BUFFERED":
            return Buffered(self.max_body_bytes)
        return UrlStream(exchange, request_id, lambda fields: shaped(admitted, fields))

    async def _request(self, admitted: Admitted, exchange: UrlExchange, body: bytes, request_id: str) -> UrlRequest:
        """Make the request that the function gets. Raises: Forbidden."""
        access_key = ""
        if admitted.url.auth == "AWS_IAM":
            try:
                access_key = await _off_loop(len(body), lambda: self._signatures.signer(admitted.signed, body))
            except AccessDenied:
                raise Forbidden() from None
        transport, addressed, head = exchange.connection.transport, admitted.addressed, exchange.head
        peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        return UrlRequest(
            url_id=admitted.url.id,
            domain=self._names.host(admitted.url.id),
            method=admitted.signed.method,
            path=addressed.path.decode("latin-1"),
            query=addressed.query.decode("latin-1"),
            version=head.version,
            headers=head.headers,
            source_ip=peer[0] if peer else "",
            server_port=own[1] if own else 0,
            request_id=request_id,
            time_s=time.time(),
            access_key=access_key,
        )

    async def _invoke(
        self,
        admitted: Admitted,
        request: UrlRequest,
        exchange: UrlExchange,
        body: bytes,
        request_id: bytes,
        sink: UrlStream | Buffered,
    ) -> Answer:
        """Raises: SockdError."""
        payload = await _off_loop(len(body) + 16 * len(request.query), lambda: event(request, body))
        if len(payload) > self.max_body_bytes + EVENT_BYTES:
            raise self.too_large()
        asked = InvokeRequest(admitted.url.name, payload, request_id, exchange.arrived_ns, exchange.gone, sink=sink)
        if exchange.held is not None:
            exchange.request = asked
        asked.qualifier = admitted.url.qualifier
        asked.trace = of_headers(request.headers)
        asked.as_http = lambda: (_as_http(admitted, request, exchange, body), body)
        asked.method = ANY_METHOD
        if admitted.url.qualifier:
            asked.details = {"arn": arn(admitted.url.name, admitted.url.qualifier)}
        invocation = await self._worker.calls.invoke(asked)
        if not invocation.streamed:
            try:
                replied = await _off_loop(len(invocation.body), lambda: reply(invocation.body))
            except SockdError as error:
                error.invocation = invocation
                raise
        elif isinstance(sink, Buffered):
            replied = sink.reply()
        else:
            return Answer(200, "", b"")  # it has been written
        fields = lines(shaped(admitted, replied.fields)) + invocation_fields(invocation, request.request_id)
        return Answer(replied.status, fields, replied.body)


def _as_http(admitted: Admitted, request: UrlRequest, exchange: Exchange, body: bytes) -> dict[str, Any]:
    """Return the request as a web app behind the URL gets it."""
    addressed = admitted.addressed
    root_path = PATH_PREFIX + admitted.url.id.encode() if addressed.by_path else b""
    http = app_request(exchange, root_path, addressed.path, addressed.query, body)
    if request.access_key:
        # It proves something to us, and is nothing for the app.
        http["headers"] = [header for header in http["headers"] if header[0] != "authorization"]
    return http


def shaped(admitted: Admitted, fields: Fields) -> Fields:
    """A function's headers as its URL sends them."""
    fields = with_cors(admitted.url.cors, fields, admitted.signed.headers.get("origin"))
    return [*fields, SANDBOXED] if admitted.addressed.by_path else fields


class UrlExchange(Exchange):
    """One request: checked by its head, then run when its body is complete."""

    def __init__(self, connection: Connection, head: Head, api: UrlApi, addressed: Addressed) -> None:
        super().__init__(connection, head)
        self.arrived_ns = time.monotonic_ns()
        self._api = api
        self.max_body_bytes = api.max_body_bytes
        self._body = Body()
        self._target: Admitted | Exception
        try:
            self._target = api.admit(head, addressed)
            if api.preflight(self._target):
                self.payload = DROP_BODY[self.payload]
        except Exception as error:
            self.refuse(error)

    def refuse(self, error: Exception) -> None:
        self._target = error
        self._body = Body()
        self.payload = DROP_BODY[self.payload]

    def on_body(self, data: bytes) -> None:
        self._body.add(data)
        if self._body.size > self._api.max_body_bytes:
            self.refuse(self._api.too_large())

    async def run(self) -> None:
        target = self._target
        if isinstance(target, Exception):
            self.answer(refusal(target, request_id_text(new_request_id())))
        else:
            await self._api.answer(target, self, await self._body.whole())

    def answer(self, answer: Answer) -> None:
        if answer.status not in _NO_BODY or self.stage is Stage.LOST:
            super().answer(answer)
            return
        # No content-length: RFC 9110, 8.6.
        self.connection.write(f"{self.begin(answer.status, answer.fields)}\r\n".encode("latin-1"), b"")
        self.connection.finish(self)


def _says_signed(request: SignedRequest) -> bool:
    return "authorization" in request.headers or "X-Amz-Signature=" in request.query


async def _off_loop(size_bytes: int, work: Callable[[], T]) -> T:
    """Do it here if it is short, in a thread if it is not. (C code that holds the GIL for milliseconds still does.)"""
    return await asyncio.to_thread(work) if size_bytes > INLINE_BYTES else work()
