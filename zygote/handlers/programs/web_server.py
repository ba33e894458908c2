"""A web server as a function: requests are forwarded to a port of the sandbox, as by AWS's Lambda Web Adapter.

    program (any web server)                        this, the sandbox's first process
      │ listens on its port                           → polled until it answers: READY
      │◄─ the HTTP request of /run or a function URL  ← INVOKE with the request; HEAD and CHUNKs as the answer comes
      │◄─ that of an event from API Gateway or an ALB ← INVOKE with the event; RESULT: {statusCode, headers, body}
      │◄─ POST /events, the event as its body         ← INVOKE with any other event; RESULT: the answer's body

Owns the program. Everything else is the adapter's contract: its variables AWS_LWA_... in the program's environment. On the host's
network a port may be in use, so the program gets a free one in PORT and AWS_LWA_PORT, and a request is sent only if the program
listens there (`own_listener`); elsewhere no other process has ports.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
import time
from http.client import HTTPConnection, HTTPException, HTTPResponse

from sockd_zygote import protocol
from sockd_zygote.handlers.apps import App, Exchange, Request
from sockd_zygote.handlers.handler import Context, shared_context
from sockd_zygote.handlers.programs import image_program
from sockd_zygote.handlers.programs.http_events import answer_of, as_json, is_http, of_event
from sockd_zygote.handlers.programs.own_listener import OwnListener
from sockd_zygote.handlers.programs.runtime_api import LOOPBACK, own_ports
from sockd_zygote.messages import errors
from sockd_zygote.messages.outlet import Outlet

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from typing import Any

POLL_S = 0.005
"""Between two attempts to reach a server that is starting."""
EXIT_GRACE_S = 0.5
"""From a connection that a server breaks to its exit, if that is why."""
SLOW_START_S = 2.0
"""The delay of a server that does not answer: then the log says what is waited for, as the deadline ends this process
without a word."""
SILENCE_S = 1.0
"""So long a request waited at least before its server is called silent, if others were answered."""
GIVE_UP_S = 0.5
"""Before a deadline, at most: so long it takes to say why it was missed. Of a short one, a tenth."""
TRIES = 3
"""To connect to the program's own listener, while it opens a new one."""
NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EAFNOSUPPORT)
UNHEALTHY = 500
SWITCHED = 101
"""Ends the HTTP of a connection; no request here asks for it."""
HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
CONTEXT_HEADER, PREFIX_HEADER = "x-amzn-lambda-context", "x-forwarded-prefix"
"""What only we say."""
WITH_BODY = ("POST", "PUT", "PATCH")


class FinalResponse(HTTPResponse):
    """A server's answer, after any 103 Early Hints: http.client itself skips 100 only."""

    def begin(self) -> None:
        super().begin()
        while 100 < self.status < 200 and self.status != SWITCHED:
            self.headers = None  # type: ignore[assignment]  # else nothing is read
            super().begin()


class WebServer(App):
    """A handler that forwards to a program of its own."""

    def __init__(self, function: dict) -> None:
        """Start the program; returns when it answers.

        Raises: errors.ReportedError: it cannot be run, does not answer in time, or another process has its port; SystemExit: it
        has ended."""
        super().__init__(None)
        image = function["image"]
        variables = image_program.environment(function)
        self._shared = shared_context(function)
        self._shares_ports = image["shares_ports"]
        self._port = free_port() if self._shares_ports else image["port"]
        self._listener = OwnListener(self._port)
        variables |= {"PORT": str(self._port), "AWS_LWA_PORT": str(self._port)}
        self._variables = variables
        self._status: int | None = None
        self._ended = threading.Event()
        program = image_program.start(image, variables, ())
        threading.Thread(target=self._wait_for, args=(program,), daemon=True).start()
        self._is_ready = False
        if variables.get("AWS_LWA_ASYNC_INIT", "").lower() != "true":
            self._await_ready(image["init_timeout_s"], "init_timeout_s")

    def call(self, event: bytes, request: bytes, deadline_ns: int, metadata: dict | None = None) -> Any:
        """One request. Raises: SystemExit: the server has ended; errors.ReportedError; InvalidEvent."""
        context = Context(self._shared, request, deadline_ns)
        if not self._is_ready:
            self._await_ready(context.get_remaining_time_in_millis() / 1000, "timeout_s")
        if metadata is not None:
            context.tell(metadata)
        self._context_field = lambda_context(context)
        http = (metadata or {}).get("http")
        if http is not None:
            return Exchange(self, Request(http, event))
        return self._answer_event(event)

    def answer(self, request: Request, outlet: Outlet) -> None:
        """An HTTP request: the answer goes out as it comes."""
        headers = request.headers
        if request.root_path:  # instead of what a client says
            headers = [pair for pair in headers if pair[0] != PREFIX_HEADER] + [[PREFIX_HEADER, request.root_path]]
        with self._forwarded(request.method, request.raw_path, request.query, headers, request.body) as response:
            outlet.head(response.status, kept_headers(response))
            for piece in self._pieces(response):
                outlet.chunk(piece)
            outlet.flush()

    def _pieces(self, response: HTTPResponse) -> Iterator[bytes]:
        """The body, as it comes. Raises: SystemExit: the server has ended; errors.ReportedError: it broke off."""
        missing = response.length  # None: until the connection is closed, or in chunks, whose end is seen
        try:
            while piece := response.read1(protocol.CHUNK_MAX_BYTES):
                missing = None if missing is None else missing - len(piece)
                yield piece
        except (OSError, HTTPException) as error:
            raise self._broken_off(f"{type(error).__name__}: {error}") from None
        if missing:  # read1 does not tell this from the end
            raise self._broken_off(f"{missing} bytes are missing")

    def _broken_off(self, why: str) -> BaseException:
        """Return the error for an answer whose head was good."""
        if self._ended.wait(EXIT_GRACE_S):
            return SystemExit(self._status)
        message = f"the web server on port {self._port} broke its answer off: {why}"
        return errors.ReportedError("WebServer.NoAnswer", message, [])

    def _answer_event(self, event: bytes) -> bytes:
        """An event: an HTTP request in the shape of API Gateway, a function URL or an ALB, or anything else."""
        from sockd_zygote.messages.event_json import parse_event

        parsed = parse_event(event)
        if not isinstance(parsed, dict) or not is_http(parsed):
            path = self._variables.get("AWS_LWA_PASS_THROUGH_PATH", "/events")
            with self._forwarded("POST", path, "", [["content-type", "application/json"]], event) as response:
                return as_json(b"".join(self._pieces(response)))
        with self._forwarded(*of_event(parsed)) as response:
            return answer_of(parsed, response.status, kept_headers(response), b"".join(self._pieces(response)))

    def _forwarded(self, method: str, path: str, query: str, headers: list[list[str]], body: bytes) -> HTTPResponse:
        """Raises: SystemExit: the server has ended; errors.ReportedError: it did not answer."""
        base = self._variables.get("AWS_LWA_REMOVE_BASE_PATH", "")
        if base and path.startswith(base):
            path = path[len(base) :] or "/"
        connection = HTTPConnection(LOOPBACK, self._port)
        try:
            connection = self._connected()
            connection.putrequest(
                method, f"{path}?{query}" if query else path, skip_host=True, skip_accept_encoding=True
            )
            names = set()
            for name, value in headers:
                if name not in HOP_BY_HOP and name not in ("content-length", CONTEXT_HEADER):
                    names.add(name)
                    connection.putheader(name, value.encode("latin-1"))
            if "host" not in names:
                connection.putheader("host", f"{LOOPBACK}:{self._port}")
            if body or method in WITH_BODY:
                connection.putheader("content-length", str(len(body)))
            connection.putheader(CONTEXT_HEADER, self._context_field)
            connection.putheader("connection", "close")
            connection.endheaders(body or None)
            return connection.getresponse()
        except (OSError, HTTPException, ValueError) as error:
            connection.close()
            if self._ended.wait(EXIT_GRACE_S):
                raise SystemExit(self._status) from None
            message = f"the web server on port {self._port} did not answer: {type(error).__name__}: {error}"
            raise errors.ReportedError("WebServer.NoAnswer", message, []) from None

    def _connected(self) -> HTTPConnection:
        """A connection to the program alone. Raises: OSError; errors.ReportedError: another process has its port."""
        if not self._shares_ports:
            return _connection(LOOPBACK, self._port)
        for _ in range(TRIES):
            found = self._listener.find()
            connection = _connection(found[1] if found is not None else LOOPBACK, self._port)
            if found is not None and self._listener.find() == found:
                return connection
            connection.close()  # nothing was sent: who has accepted it learns nothing
        raise self._port_in_use()

    def _port_in_use(self) -> errors.ReportedError:
        message = f"port {self._port} is another process's: on the host's network, listen on $PORT"
        return errors.ReportedError("WebServer.PortInUse", message, [])

    def _await_ready(self, within_s: float, setting: str) -> None:
        """Until the server answers. Args: within_s: from now to the deadline, which `setting` says.

        Raises: SystemExit: the server has ended; errors.ReportedError: it did not answer, or another process has its port."""
        checked = self._variables.get("AWS_LWA_READINESS_CHECK_PROTOCOL", "http").lower()
        port = int(self._variables.get("AWS_LWA_READINESS_CHECK_PORT") or self._port)
        path = (self._variables.get("AWS_LWA_READINESS_CHECK_PATH") or "/") if checked == "http" else ""
        unhealthy = int(self._variables.get("AWS_LWA_READINESS_CHECK_MIN_UNHEALTHY_STATUS") or UNHEALTHY)
        begun = time.monotonic()
        until = begun + within_s - min(GIVE_UP_S, within_s / 10)
        slow_at = begun + SLOW_START_S
        why, asked_at = "", begun
        while said := why_not_ready(port, path, unhealthy, max(until - asked_at, POLL_S)):
            now = time.monotonic()
            # A silence that the deadline cut short says less than the answer before.
            why = why if why and said == SILENT and now - asked_at < SILENCE_S else said
            if now >= until:
                message = (
                    f"the web server was not ready after {now - begun:.1f} s: {asked(port, path)} {why}. "
                    f"{self._advice(port, path, why, setting)}"
                )
                raise errors.ReportedError("WebServer.NotReady", message, [])
            if now > slow_at:
                slow_at = float("inf")
                hint = " (it must listen on $PORT)" if why == REFUSED else ""
                print(f"sockd waits for the web server: {asked(port, path)} {why}{hint}", file=sys.stderr, flush=True)
            if self._ended.wait(POLL_S):
                raise SystemExit(self._status)
            asked_at = time.monotonic()
        if self._listener.find() is None if self._shares_ports else self._port not in own_ports():
            raise self._port_in_use()
        self._is_ready = True

    def _advice(self, port: int, path: str, why: str, setting: str) -> str:
        """What helps a server that was not ready."""
        if why == REFUSED and port in own_ports():
            return f"The program listens on this port, but not at {LOOPBACK}. Have it listen there, or at 0.0.0.0"
        if why == REFUSED:
            others = ", ".join(map(str, sorted(own_ports())))
            listens = f"The program listens on {others}. " if others else "The program listens on no port. "
            if others and not self._shares_ports and port == self._port:
                return f"{listens}Set app_port to its port, or have it listen on $PORT"
            if others and self._shares_ports:
                return f'{listens}It must listen on $PORT; network = "none" lets it have any port, set as app_port'
            return f"{listens}It must listen on $PORT; if it only needs longer to start, raise {setting}"
        if not path:
            return f"If it only needs longer to start, raise {setting}"
        return f"Set readiness_path to a path that it answers; if it only needs longer to start, raise {setting}"

    def _wait_for(self, program: subprocess.Popen[bytes]) -> None:
        status = program.wait()
        self._status = 128 - status if status < 0 else status
        self._ended.set()


def _connection(host: str, port: int) -> HTTPConnection:
    """A connection that is made; where IPv6 is switched off, so is ::1. Raises: OSError."""
    connection = HTTPConnection(host, port)
    connection.response_class = FinalResponse
    try:
        connection.connect()
    except OSError as error:
        if host == LOOPBACK or error.errno not in NO_SUCH_ADDRESS:
            raise
        return _connection(LOOPBACK, port)
    return connection


def free_port() -> int:
    """A port that no process listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        number: int = probe.getsockname()[1]
        return number


REFUSED, SILENT = "was refused, as no process listens there", "has no answer"


def why_not_ready(port: int, path: str, unhealthy: int, timeout_s: float) -> str:
    """What came of a request, if the server is not ready; empty: it is.

    Args: path: empty: it is enough that the port is open; unhealthy: the lowest status that is not ready."""
    connection = HTTPConnection(LOOPBACK, port, timeout=timeout_s)
    try:
        connection.connect()
        if not path:
            return ""
        connection.request("GET", path, headers={"connection": "close"})
        status = connection.getresponse().status
        return f"has status {status}, and not one below {unhealthy}" if status >= unhealthy else ""
    except ConnectionRefusedError:
        return REFUSED
    except TimeoutError:
        return SILENT
    except (OSError, HTTPException) as error:
        return f"failed: {type(error).__name__}: {error}"
    finally:
        connection.close()


def asked(port: int, path: str) -> str:
    """What a server was asked, for people."""
    return f"GET {path} on port {port}" if path else f"a connection to port {port}"


def kept_headers(response: HTTPResponse) -> list[tuple[str, str]]:
    """A response's headers that are not about the connection."""
    return [(name, value) for name, value in response.getheaders() if name.lower() not in HOP_BY_HOP]


def lambda_context(context: Context) -> str:
    """Return the header with the context that a handler would get."""
    return json.dumps(
        {
            "request_id": context.aws_request_id,
            "deadline": int(time.time() * 1000) + context.get_remaining_time_in_millis(),
            "invoked_function_arn": context.invoked_function_arn,
            "xray_trace_id": os.environ.get("_X_AMZN_TRACE_ID", ""),
            "env_config": {
                "function_name": context.function_name,  # type: ignore[attr-defined]
                "memory": int(context.memory_limit_in_mb),  # type: ignore[attr-defined]
                "version": context.function_version,  # type: ignore[attr-defined]
                "log_group": context.log_group_name,  # type: ignore[attr-defined]
                "log_stream": context.log_stream_name,  # type: ignore[attr-defined]
            },
        }
    )
