"""The application of the public port. An invocation passes no framework.

    POST|GET /run/<name>[:version or alias][/...]
                           bytes in, JSON out; GET or an empty body is the event {}; a query is refused, as no function of
                           events would see it
    ANY /run/<name>[:version or alias][/path][?query]
                           of a web app: what follows the name is its own
    GET|HEAD /healthz  /status  /metrics
                           these three also over a Unix socket of the state directory, which only root can put there;
                           who may use all but the first: `sockd.http.access.callers`
    /2015-03-31/...        AWS's Lambda API (`sockd.http.aws`)
    /url/<id>/...          function URLs (`sockd.http.urls`), which have names of their own, too
    /  /functions/<name>   the page for people (`sockd.http.page`), where there is one

Owns the rules of this API (names, sizes, hosts, methods). Knows nothing of functions. It offers no management but to
signed requests of that API: see `sockd.http`. A client that goes away while its function runs does not stop it: the
function may have side effects, so it finishes, and its answer is dropped. What still waits for its turn is not begun.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from sockd.base import trace_context
from sockd.base.config import HttpConfig
from sockd.base.errors import BadRequest, MethodNotAllowed, RequestTooLarge, SockdError
from sockd.base.function_arns import arn
from sockd.base.invoke_request import InvokeRequest
from sockd.base.request_ids import new_request_id, request_id_text
from sockd.http.access.callers import AUTHORIZATION, Callers, Readable
from sockd.http.access.host_check import (
    CrossSite,
    ForbiddenHost,
    HostCheck,
    NoServiceWorkers,
    check_origin,
    may_come_from,
)
from sockd.http.aws.lambda_api import LambdaApi
from sockd.http.aws.routes import PREFIX
from sockd.http.paths import NoSuchPage
from sockd.http.plain_calls import run
from sockd.http.replays import Replays
from sockd.http.run.run_options import HEADERS, SIGNATURE, ours, run_as_asked
from sockd.http.run.signed_calls import SignedCall
from sockd.http.server.apps.app_request import app_request
from sockd.http.server.connection import Connection
from sockd.http.server.exchange import BodyExchange, Exchange
from sockd.http.server.messages.answers import Answer, failure, json_answer
from sockd.http.server.messages.body import Body
from sockd.http.server.messages.head import Head, length_of
from sockd.http.server.states import DROP_BODY
from sockd.http.server.streamed import StreamedAnswer
from sockd.http.urls.url_api import UrlApi
from sockd.http.worker import Worker

_RUN = b"/run/"
_RUN_TARGET = re.compile(
    rb"/run/([A-Za-z0-9_-]{1,64})(?:(?::|%3[Aa])((?:\$|%24)LATEST|[A-Za-z0-9_-]{1,128}))?(/[^?]*)?(?:\?(.*))?"
)
"""Percent-encoded : and $ are equivalent to the characters."""
Page = Callable[[], Answer | Awaitable[Answer]]
_READABLE: dict[bytes, Readable] = {b"/status": "status", b"/metrics": "metrics"}
NO_SUCH_PAGE = "no such page; a function is at /run/<name>"
_READ_HEADERS = HEADERS | trace_context.HEADERS
_PROMETHEUS = "content-type: text/plain; version=0.0.4; charset=utf-8\r\n"


class Called:
    """A request's target: function, version or alias, rest of the path, query."""

    __slots__ = ("_target", "name", "qualifier", "query")

    def __init__(self, target: re.Match[bytes]) -> None:
        """Args: target: as `_RUN_TARGET` matched it."""
        self._target = target
        self.name = target[1].decode()
        self.qualifier = target[2].decode().replace("%24", "$") if target[2] else ""
        self.query: bytes | None = target[4]
        """Undecoded; empty or None: there is none."""

    def as_http(self, exchange: Exchange, body: bytes, *, without: bytes = b"") -> dict[str, Any]:
        """The request for a web app. Args: without: a header that is not the app's."""
        path, query = (part or b"" for part in self._target.group(3, 4))
        root_path = f"/run/{self.name}{f':{self.qualifier}' if self.qualifier else ''}".encode()
        return app_request(exchange, root_path, path, query, body, without=without)


class Site(Protocol):
    """Pages of another application on this port, behind this API's rules of hosts. It checks itself where requests come from."""

    withhold: Callable[[Head], None] | None
    """Takes the keys that it asks for out of a request that is for others."""

    def serves(self, head: Head) -> bool:
        """Whether a request is for it."""

    def open(self, connection: Connection, head: Head) -> Exchange: ...


class Peers(Protocol):
    """The API for other workers of the group."""

    def serves(self, head: Head) -> bool:
        """Whether a request is for it."""

    def open(self, connection: Connection, head: Head) -> Exchange: ...


class Front:
    """The application of the public port."""

    def __init__(
        self,
        worker: Worker,
        config: HttpConfig,
        lambda_api: LambdaApi | None = None,
        url_api: UrlApi | None = None,
        site: Site | None = None,
        replays: Replays | None = None,
        callers: Callers | None = None,
        peers: Peers | None = None,
    ) -> None:
        """Args: replays: of another API, so that a request that comes again through this one is known; None: of its own;
        callers: who may call; None: as the configuration says, without keys; peers: None: the worker is in no group."""
        self.worker = worker
        self.calls = worker.calls
        self._callers = callers or Callers(config)
        self._lambda_api = lambda_api
        self._url_api = url_api
        if replays is None:
            replays = lambda_api.replays if lambda_api is not None else Replays(config)
        self.replays = replays
        self._site = site
        self._peers = peers
        self.max_payload_bytes = config.max_payload_bytes
        self._config = config
        self._hosts = HostCheck(config.listen)
        self._pages: dict[bytes, Page] = {
            b"/healthz": self._healthz,
            b"/status": lambda: json_answer(worker.numbers.status()),
            b"/metrics": self._metrics,
        }
        self.refused: dict[str, int] = {}
        """Requests refused before they reach the worker, by error type."""

    def open(self, connection: Connection, head: Head) -> Exchange:
        site = self._site
        if site is not None and site.withhold is not None and not site.serves(head):
            site.withhold(head)
        if self._url_api is not None and (addressed := self._url_api.addressed(head)) is not None:
            return self._url_api.open(connection, head, addressed)
        called = _RUN_TARGET.fullmatch(head.target)
        if called is None and self._lambda_api is not None and head.target.startswith(PREFIX):
            return self._lambda_api.open(connection, head)
        if called is None and self._peers is not None and self._peers.serves(head):
            return self._peers.open(connection, head)
        if called is None and site is not None and site.serves(head) and self._allowed(head):
            return site.open(connection, head)
        return FrontExchange(connection, head, self, called)

    def _allowed(self, head: Head) -> bool:
        """Whether the site may answer; if not, our own exchange will say why.

        The site judges by itself which pages a request may come from: its own may be in a sandbox, an origin of its own, of
        which browsers say `cross-site`."""
        try:
            self.check(head, judge_site=False)
        except SockdError:
            return False
        return True

    def check(self, head: Head, *, judge_site: bool = True) -> dict[bytes, bytes] | None:
        """Args: judge_site: whether pages of other sites are refused.
        Returns: those of its headers that ask for more than an answer, if it has any: `run_options`, a trace's context.

        Raises: BadRequest, ForbiddenHost, CrossSite, OtherOrigin, NoServiceWorkers, RequestTooLarge."""
        host: bytes | None = None
        asked: dict[bytes, bytes] | None = None
        for name, value in head.headers:
            if name == b"host":
                if host is not None:
                    raise BadRequest("more than one Host header")
                host = value
            elif name == b"content-length":
                length = length_of(value)
                if length > self.max_payload_bytes:
                    raise RequestTooLarge(f"the payload has {length} bytes; the limit is {self.max_payload_bytes}")
            elif name in _READ_HEADERS:
                asked = {**(asked or {}), name: value}
            elif name == b"service-worker":
                raise NoServiceWorkers
            elif name == b"sec-fetch-site" and judge_site and not may_come_from(value, head.method, self._config):
                raise CrossSite
        if host is None:
            if head.version != "1.0":
                raise BadRequest("a Host header is needed, as in HTTP/1.1")
        elif host not in self._hosts.known and not self._hosts.allows(host):
            raise ForbiddenHost("this worker listens on loopback and answers to localhost, 127.0.0.1 and [::1] only")
        if head.asks_for_websocket:
            check_origin(head.headers, host or b"", self._config)
        return asked

    def route(self, head: Head, called: re.Match[bytes] | None) -> Called | Page:
        """Serve a function, or a page.

        Args: called: the target, as `_RUN_TARGET` matched it.
        Raises: BadRequest, MethodNotAllowed, NoSuchPage."""
        if called:
            return Called(called)
        path, query = head.path_and_query()
        if path.startswith(_RUN):
            # The raw path, so that nothing is decoded before it is judged: %2e, %2f and %00 are simply not in a name.
            called = _RUN_TARGET.fullmatch(path + b"?" + query)
            if called is None:
                raise BadRequest("a function's name is 1 to 64 of A-Z a-z 0-9 _ -, perhaps with :VERSION or :ALIAS")
            return Called(called)
        page = self._pages.get(path)
        if page is None:
            raise NoSuchPage(NO_SUCH_PAGE)
        if head.method not in (b"GET", b"HEAD"):
            raise MethodNotAllowed(head.method.decode(), "GET, HEAD")
        return page

    def check_caller(self, target: Called | Page, connection: Connection, head: Head) -> bool:
        """Check access to the target. Returns: as `Callers.check_call`.

        Raises: RunClosed, KeyNeeded, KeyNotEnough, NoSuchPage."""
        if isinstance(target, Called):
            return self._callers.check_call(target.name, connection, head)
        if (readable := _READABLE.get(head.path_and_query()[0])) is not None:
            self._callers.check_read(readable, connection, head, NoSuchPage(NO_SUCH_PAGE))
        return False

    def hides_errors(self, target: Called | Page, connection: Connection, head: Head) -> bool:
        """As `Callers.hides_errors`, of a function; a page hides nothing."""
        callers = self._callers
        if callers.errors == "full" and not callers.error_details:
            return False  # asked for each request: without a call of another module
        return isinstance(target, Called) and callers.hides_errors(target.name, connection, head)

    def _healthz(self) -> Answer:
        if self.calls.draining or self.calls.leaving:
            return json_answer({"status": "draining"}, 503)
        return json_answer({"status": "ok"})

    async def _metrics(self) -> Answer:
        return Answer(200, _PROMETHEUS, await self.worker.numbers.metrics())

    def refuse(self, error: SockdError, request_id: str) -> Answer:
        """The answer to a refused request."""
        self.refused[error.error_type] = self.refused.get(error.error_type, 0) + 1
        return failure(error, request_id)


class FrontExchange(BodyExchange):
    """One request: checked by its head, then run when its body is complete."""

    _target: Called | Page | SockdError
    _asked: dict[bytes, bytes] | None = None
    _has_key = False
    """Its Authorization header is a key of the worker and is not passed to an app."""
    _hides_errors = False
    """Whether the errors of functions are hidden from the caller."""

    def __init__(self, connection: Connection, head: Head, front: Front, called: re.Match[bytes] | None) -> None:
        super().__init__(connection, head)
        self._arrived_ns = time.monotonic_ns()
        self._front = front
        self.max_body_bytes = front.max_payload_bytes
        try:
            self._asked = front.check(head)
            self._target = front.route(head, called)
            self._has_key = front.check_caller(self._target, connection, head)
            self._hides_errors = front.hides_errors(self._target, connection, head)
            if not isinstance(self._target, Called):
                self.payload = DROP_BODY[self.payload]
        except SockdError as error:
            self.refuse(error)

    def refuse(self, error: SockdError) -> None:
        self.body = b""
        self._target = error
        self.payload = DROP_BODY[self.payload]

    def start(self) -> None:
        """Without a task where a live function is just to be run, with a body that came in one piece."""
        target, body = self._target, self.body
        if isinstance(target, Called) and isinstance(body, bytes) and not self._asks_more():
            request, sink = self._invoke_request(target, body)
            self.end = self._front.calls.begin(request, sink.conclude)
            if self.end is not None:
                self.sink = sink
                return
        super().start()

    def _asks_more(self) -> bool:
        """Whether its headers ask for more than an answer; a trace's context does not."""
        return self._asked is not None and not HEADERS.isdisjoint(self._asked)

    def cancel(self) -> None:
        if self.end is None or self.sink is None:
            super().cancel()
            return
        self.end()
        self.sink.conclude(asyncio.CancelledError())

    async def run(self) -> None:
        target = self._target
        if isinstance(target, Called):
            if isinstance(self.body, Body):
                self.body = await self.body.whole()
            request, sink = self._invoke_request(target, self.body)
            if self.held is not None:
                self.request = request
            if self._asked is not None and self._asks_more():
                sink.close(await self._run_as_asked(request, self._asked))
            else:
                sink.close(await run(self._front.calls, request))
            return
        text_id = request_id_text(new_request_id())
        if isinstance(target, SockdError):
            self.answer(self._front.refuse(target, text_id))
            return
        try:
            page = target()
            self.answer(page if isinstance(page, Answer) else await page)
        except Exception as error:
            self.answer(failure(error, text_id))

    def _invoke_request(self, target: Called, body: bytes) -> tuple[InvokeRequest, StreamedAnswer]:
        """The invocation request, and the receiver of its answer."""
        request_id = new_request_id()
        sink = StreamedAnswer(self, request_id)
        payload = body or b"{}"
        request = InvokeRequest(target.name, payload, request_id, self._arrived_ns, self.gone)
        request.hides_errors = self._hides_errors
        request.sink, request.method, request.as_http = sink, self.head.method.decode(), self._as_http
        if target.qualifier:
            request.qualifier, request.details = target.qualifier, {"arn": arn(target.name, target.qualifier)}
        if target.query:
            request.query = target.query
        if self._asked is not None:
            request.trace = trace_context.of_headers(self.head.headers)
        return request, sink

    async def _run_as_asked(self, request: InvokeRequest, asked: dict[bytes, bytes]) -> Answer:
        front = self._front
        if front.calls.is_app(request.name):
            asked = ours(asked)
        signed = await SignedCall.verified(request, asked, front.calls.call_key) if SIGNATURE in asked else None
        if signed is not None:
            request.details = {**(request.details or {}), "deployer": True}
            request.hides_errors = False
            request.sink = None  # a signature is of a whole answer
            request.id = bytes.fromhex(signed.nonce)  # which the deployer knows before there is an answer
        try:
            answer = await run_as_asked(
                *(request, asked),
                events=front.worker.events,
                replays=front.replays,
                run=lambda: run(front.calls, request),
                incarnation=front.calls.incarnation,
            )
        except SockdError as error:
            answer = failure(error, request_id_text(request.id))
        return answer if signed is None else await signed.answered(answer)

    def _as_http(self) -> tuple[dict[str, Any], bytes]:
        """The request for a web app, and its body."""
        called, body = self._target, self.body
        assert isinstance(called, Called)
        assert isinstance(body, bytes)
        return called.as_http(self, body, without=AUTHORIZATION if self._has_key else b""), body
