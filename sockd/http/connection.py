"""One HTTP connection: uvicorn's own, with the limits that it lacks.

uvicorn 0.54 bounds neither the size of a request's head nor the time that a head or a body may take, answers its own
refusals as text, counts its `limit_concurrency` in tasks, and drops a request whose client has closed its sending half.
This class adds those rules, and an answer in one write; parsing, flow control and keep-alive are uvicorn's.

Owns its deadline. Knows nothing of functions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from sockd.http.exchange import Exchange
from sockd.http.refusals import HEAD_TOO_LARGE, MALFORMED, TOO_MANY, TOO_SLOW


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


def _without_upgrade(
    parser: httptools.HttpRequestParser, url: bytes, headers: list[tuple[bytes, bytes]]
) -> bytes | None:
    """The head of a request, asking for no other protocol; None if it is nothing but that."""
    method = parser.get_method()
    if method == b"CONNECT":
        return None
    lines = [b"%s %s HTTP/%s" % (method, url, parser.get_http_version().encode())]
    for name, value in headers:
        if name == b"connection":
            tokens = [token.strip().lower() for token in value.split(b",")]
            value = b", ".join(token for token in tokens if token in (b"close", b"keep-alive"))
        if name not in (b"upgrade", b"http2-settings"):
            lines.append(name + b": " + value)
    return b"\r\n".join(lines) + b"\r\n\r\n"


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
        self._plain_head: bytes | None = None

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
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(self._reason)
        else:
            if self._whole:
                self._clear_deadline()
            elif self._in_head:
                self._wait_for_head()
            elif was_in_head or self._deadline is None:
                self._set_deadline(self._limits.body_s)

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if self._plain_head is None:
                    raise httptools.HttpParserError("CONNECT") from None
                # Its parser stops there and would drop the body (Java's HttpClient sends one with `Upgrade: h2c`). We
                # offer no other protocol, so the request is read again as the plain one that it also is.
                data, self._plain_head = self._plain_head + data[upgrade.args[0] :], None
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            else:
                return

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
        if self.parser.should_upgrade():
            self._plain_head = _without_upgrade(self.parser, self.url, self.headers)
            return
        self._in_head = False
        self._head_bytes = 0
        super().on_headers_complete()
        # uvicorn names its class in there; the request's task has been made but has not run yet, so this is in time.
        self.cycle.__class__ = Exchange

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
        if self._plain_head is not None:
            return
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
