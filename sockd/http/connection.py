"""One HTTP connection: uvicorn's own, with the limits that it lacks.

uvicorn 0.54 bounds neither the size of a request's head nor the time that a head or a body may take, answers its own
refusals as text, counts its `limit_concurrency` in tasks, and drops a request whose client has closed its sending half.
It also writes an answer's head and body separately, which uvloop turns into two system calls and, with TCP_NODELAY, two
packets. This class adds those rules and joins those writes, and nothing else: parsing, flow control and keep-alive are
uvicorn's.

Owns its deadline. Knows nothing of functions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from http import HTTPStatus

import httptools
import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection may take."""

    connections: int = 4096
    head_bytes: int = 32 * 1024
    """The request line and the headers."""
    head_s: float = 10.0
    """From the first byte of a request, or from the connection's start, to the last of its head."""
    body_s: float = 60.0
    """From the head's end to the body's."""
    discard_bytes: int = 64 << 20
    """Of a body that was refused: read and dropped, so that a client which sends before it reads gets its answer."""
    half_close: bool = True
    """A client that shuts its sending half down still gets its answer. Off where an answer may take for ever and only
    the end of file tells that nobody reads it."""


class Connections(ServerState):
    """All connections of one server."""

    def __init__(self, limits: ConnectionLimits) -> None:
        super().__init__()
        self.limits = limits
        self.closing = False
        self.none_left = asyncio.Event()
        self.refused: Counter[str] = Counter()
        """Requests refused before the application saw them, by error type."""


def refusal(status: int, error_type: str, message: str) -> tuple[str, bytes]:
    """A whole response, ready to be written before the connection closes; and the name that it is counted under."""
    body = msgspec.json.encode({"errorType": error_type, "errorMessage": message, "requestId": ""})
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n{'retry-after: 1' + chr(13) + chr(10) if status == 503 else ''}"
        "connection: close\r\n\r\n"
    )
    return error_type, head.encode() + body


MALFORMED = refusal(400, "InvalidRequestContentException", "this is not an HTTP/1.1 request that has one meaning")
HEAD_TOO_LARGE = refusal(431, "RequestHeaderFieldsTooLarge", "the request line and headers are too large")
TOO_SLOW = refusal(408, "RequestTimeout", "the request did not arrive in time")
TOO_MANY = refusal(503, "ServiceUnavailableException", "too many connections (http.max_connections)")


class _OneWrite:
    """The transport as one response sees it: its head waits for the first piece of its body.

    ASGI asks for that too: nothing is sent before the first `http.response.body`."""

    __slots__ = ("_cycle", "_head", "_transport", "is_closing")

    def __init__(self, cycle: RequestResponseCycle, transport: asyncio.Transport) -> None:
        self._cycle = cycle
        self._transport = transport
        self._head: bytes | None = None
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        cycle = self._cycle
        if self._head is None:
            # The first write of a started response is its head. Earlier ones are `100 Continue`; HEAD has no body.
            if cycle.response_started and cycle.scope["method"] != "HEAD":
                self._head = data
            else:
                self._transport.write(data)
            return
        if self._head:
            data = self._head + data
            self._head = b""
        self._transport.write(data)

    def close(self) -> None:
        if self._head:
            self._transport.write(self._head)
            self._head = b""
        self._transport.close()


class Connection(HttpToolsProtocol):
    """The protocol that `HttpServer` gives to each accepted socket."""

    server_state: Connections

    def __init__(self, config: Config, state: Connections, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(config, state, {}, loop)
        self._limits = state.limits
        self._deadline: asyncio.TimerHandle | None = None
        self._closed_to_input = False
        self._virgin = True
        self._in_head = True
        self._whole = False
        """No request is partly read."""
        self._chunk_bytes = 0
        self._head_bytes = 0
        self._discarded_bytes = 0
        self._reason = MALFORMED

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        state = self.server_state
        if len(state.connections) > self._limits.connections or state.closing:
            self._refuse(TOO_MANY)
        else:
            self._set_deadline(self._limits.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        self._unset_keepalive_if_required()
        self._closed_to_input = True
        self.pipeline.clear()
        super().connection_lost(exc)
        if not self.connections:
            self.server_state.none_left.set()

    def data_received(self, data: bytes) -> None:
        if self._closed_to_input:
            return
        self._unset_keepalive_if_required()
        was_in_head = self._in_head
        self._virgin = self._whole = False
        self._chunk_bytes = len(data)
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Answered as the plain request that it also is; what follows would be in the other protocol.
            self._close_after_answers()
        except httptools.HttpParserError:
            self._refuse(self._reason)
        else:
            if self._whole:
                self._clear_deadline()
            elif self._in_head:
                self._wait_for_head()
            elif was_in_head or self._deadline is None:
                self._set_deadline(self._limits.body_s)

    def _wait_for_head(self) -> None:
        if self._head_bytes > self._limits.head_bytes:
            self._refuse(HEAD_TOO_LARGE)
        elif self._deadline is None:
            self._set_deadline(self._limits.head_s)

    def eof_received(self) -> bool:  # type: ignore[override]
        if not self._limits.half_close or not self._unanswered():
            return False
        self._close_after_answers()
        return True

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._whole = False
        self._head_bytes = max(self._head_bytes, self._chunk_bytes)

    def on_headers_complete(self) -> None:
        # Exact only where it matters: a head that came with its body in one chunk is counted header by header.
        if self._head_bytes > self._limits.head_bytes and self._exact_head_bytes() > self._limits.head_bytes:
            self._reason = HEAD_TOO_LARGE
            raise ValueError("head too large")
        self._in_head = False
        self._head_bytes = 0
        super().on_headers_complete()
        # The request's task has been made but has not run yet.
        self.cycle.transport = _OneWrite(self.cycle, self.transport)  # type: ignore[assignment]

    def _exact_head_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def on_body(self, body: bytes) -> None:
        if not self.cycle.response_complete:
            super().on_body(body)
            return
        self._discarded_bytes += len(body)
        if self._discarded_bytes > self._limits.discard_bytes:
            self.transport.close()

    def on_message_complete(self) -> None:
        self._whole = True
        self._in_head = True  # whatever comes next belongs to a head
        super().on_message_complete()

    def shutdown(self) -> None:
        """Close now, or behind the answers that are still owed."""
        if self._unanswered():
            self._close_after_answers()
        else:
            self.transport.close()

    def _unanswered(self) -> bool:
        """A whole request has been read whose answer has not been written."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and (not cycle.more_body or bool(self.pipeline))

    def _close_after_answers(self) -> None:
        self._closed_to_input = True
        self._clear_deadline()
        self.cycle.keep_alive = False  # of the newest request: older ones are answered before it

    def _refuse(self, reason: tuple[str, bytes]) -> None:
        """Stop reading, and say why if this is the moment at which the client reads an answer to what it sent."""
        self._closed_to_input = True
        self._clear_deadline()
        self.server_state.refused[reason[0]] += 1
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            cycle.keep_alive = False
            return
        answered_early = cycle is not None and cycle.response_complete and not self._in_head
        if not self.pipeline and not answered_early:
            self.transport.write(reason[1])
        self.transport.close()

    def _set_deadline(self, delay_s: float) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(delay_s, self._too_late)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if self._virgin:
            self.transport.close()  # a browser's speculative connection: nothing to answer
        else:
            self._refuse(TOO_SLOW)
