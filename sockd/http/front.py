"""The public door: raw ASGI, no framework on the way of an invocation.

    POST|GET /run/<name>   bytes in, JSON out; GET or an empty body is the event {}
    GET /healthz  /status  /metrics

Owns the rules of this door (names, sizes, hosts, methods). Knows nothing of functions. It offers no management: see
`sockd.http`. A client that goes away while its function runs does not stop it: the function may have side effects,
so it finishes, and its answer is dropped.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from sockd.config import HttpConfig
from sockd.errors import BadRequest, Draining, RequestTooLarge, SockdError
from sockd.http.answers import Answer, failure, json_answer, success
from sockd.http.exchange import WHOLE
from sockd.http.host_check import ForbiddenHost, host_check
from sockd.http.worker_api import WorkerApi

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

FUNCTION_NAME = re.compile(rb"[A-Za-z0-9_-]{1,64}")
"""What a function may be called (AWS Lambda's rule); nothing in it needs escaping anywhere."""
_RUN = b"/run/"
_PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


class NoSuchPage(SockdError):
    """The path is none of this door's."""

    status = 404
    error_type = "ResourceNotFoundException"


class MethodNotAllowed(SockdError):
    """The path exists, the method does not; `allow` lists those that do."""

    status = 405
    error_type = "MethodNotAllowedException"

    def __init__(self, method: str, allow: str) -> None:
        super().__init__(f"{method} is not allowed here; use {allow}")
        self.allow = allow


class ClientGone(Exception):
    """The client closed its connection before its request was whole; there is nobody to answer."""


class Front:
    """The ASGI application of the public port, on an `HttpServer`: it answers by that server's message WHOLE."""

    def __init__(self, worker: WorkerApi, config: HttpConfig) -> None:
        self._worker = worker
        self._max_payload_bytes = config.max_payload_bytes
        self._host_allowed = host_check(config.listen)
        self._pages: dict[bytes, Callable[[], Answer]] = {
            b"/healthz": self._healthz,
            b"/status": lambda: json_answer(worker.status()),
            b"/metrics": self._metrics,
        }
        self.refused: dict[str, int] = {}
        """Requests answered here without reaching the worker, by error type."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_ns = time.monotonic_ns()
        request_id = uuid.uuid4()
        try:
            content_length = self._check_headers(scope)
            path: bytes = scope["raw_path"]
            if path.startswith(_RUN):
                name = self._function_name(scope["method"], path)
                payload = await read_body(receive, self._max_payload_bytes, content_length)
                answer = await run(self._worker, name, payload, request_id, arrived_ns)
            else:
                answer = self._page(scope["method"], path)
        except ClientGone:
            return
        except SockdError as error:
            answer = self._refuse(error, str(request_id))
        except Exception as error:
            answer = failure(error, str(request_id))
        status, headers, body = answer
        await send({"type": WHOLE, "status": status, "headers": headers, "body": body})

    def _check_headers(self, scope: Scope) -> int:
        """The declared length of the body, 0 if there is none. Raises: BadRequest, ForbiddenHost."""
        host: bytes | None = None
        content_length = 0
        for name, value in scope["headers"]:
            if name == b"host":
                if host is not None:
                    raise BadRequest("more than one Host header")
                host = value
            elif name == b"content-length":
                content_length = int(value)  # digits only: the parser has refused everything else
        if host is None:
            if scope["http_version"] != "1.0":
                raise BadRequest("a Host header is needed, as in HTTP/1.1")
        elif not self._host_allowed(host):
            raise ForbiddenHost("this worker listens on loopback and answers to localhost, 127.0.0.1 and [::1] only")
        return content_length

    def _function_name(self, method: str, path: bytes) -> str:
        # The raw path, so that nothing is decoded before it is judged: %2e, %2f and %00 are simply not in a name.
        name = path[len(_RUN) :]
        if not FUNCTION_NAME.fullmatch(name):
            raise BadRequest("a function's name is 1 to 64 of A-Z a-z 0-9 _ -, and nothing follows it in the path")
        if method not in ("POST", "GET"):
            raise MethodNotAllowed(method, "GET, POST")
        return name.decode()

    def _page(self, method: str, path: bytes) -> Answer:
        page = self._pages.get(path)
        if page is None:
            raise NoSuchPage("no such page; a function is at /run/<name>")
        if method != "GET":
            raise MethodNotAllowed(method, "GET")
        return page()

    def _healthz(self) -> Answer:
        if self._worker.draining:
            return json_answer({"status": "draining"}, 503)
        return json_answer({"status": "ok"})

    def _metrics(self) -> Answer:
        body = self._worker.metrics()
        return Answer(200, [(b"content-type", _PROMETHEUS), (b"content-length", b"%d" % len(body))], body)

    def _refuse(self, error: SockdError, request_id: str) -> Answer:
        self.refused[error.error_type] = self.refused.get(error.error_type, 0) + 1
        answer = failure(error, request_id)
        if isinstance(error, MethodNotAllowed):
            answer.headers.append((b"allow", error.allow.encode()))
        return answer


async def run(worker: WorkerApi, name: str, payload: bytes, request_id: uuid.UUID, arrived_ns: int) -> Answer:
    """Invoke a function and put whatever happens into an answer."""
    text_id = str(request_id)
    try:
        return success(
            await worker.invoke(name, payload or b"{}", request_id=request_id, arrived_ns=arrived_ns), text_id
        )
    except asyncio.CancelledError:
        # Only the server cancels, when its drain is over, and it waits for nothing but the end of this task: better an
        # answer than a connection that closes without one.
        return failure(Draining("the worker stopped before the function had answered"), text_id)
    except Exception as error:
        return failure(error, text_id)


async def read_body(receive: Receive, limit_bytes: int, content_length: int) -> bytes:
    """The whole body.

    Args:
        content_length: as declared, 0 if not; a body declared too large is refused before any of it is read.
    Raises: RequestTooLarge, ClientGone."""
    if content_length > limit_bytes:
        raise RequestTooLarge(f"the payload has {content_length} bytes; the limit is {limit_bytes}")
    message = await receive()
    if message["type"] == "http.request" and not message["more_body"]:
        body: bytes = message["body"]
    else:
        body = await _read_chunks(receive, message, limit_bytes)
    if len(body) > limit_bytes:
        raise RequestTooLarge(f"the payload has more than {limit_bytes} bytes, the limit")
    return body


async def _read_chunks(receive: Receive, message: MutableMapping[str, Any], limit_bytes: int) -> bytes:
    body = bytearray()
    while message["type"] == "http.request":
        body += message["body"]
        if not message["more_body"] or len(body) > limit_bytes:
            return bytes(body)
        message = await receive()
    raise ClientGone
