"""One HTTP connection: bytes to exchanges in order, within limits, and their answers back.

llhttp parses. What is here is what a parser does not do: bounds on sizes, times and numbers, answers in the order of the
requests, one at a time, and an end that neither loses an answer nor waits for ever. A peer that sends requests without
reading answers is not read from either: at most one of its answers and one chunk of its requests are kept.

Owns its transport and its exchanges; a function whose client has gone outlives both. Knows nothing of functions.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from typing import TYPE_CHECKING

import httptools

from sockd.http.exchange import Exchange
from sockd.http.head import Head, Headers
from sockd.http.refusals import BODY_TOO_LARGE, HEAD_TOO_LARGE, MALFORMED, TOO_MANY, TOO_SLOW, Refusal

if TYPE_CHECKING:
    from sockd.http.server import HttpServer

_NEVER = math.inf
_JOINED_BYTES = 64 * 1024
_log = logging.getLogger("sockd.http")


class _Refused(Exception):
    """Leaves the parser from inside of a callback."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal


class Connection(asyncio.Protocol):
    """The protocol of each accepted socket."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.transport: asyncio.Transport
        self.deadline_s = _NEVER
        """By the loop's clock, when `give_up` is due. Seldom exact, so that no request needs a timer."""
        self._limits = server.limits
        self._loop = asyncio.get_running_loop()
        self._parser: httptools.HttpRequestParser | None = self._new_parser()
        self._exchanges: deque[Exchange] = deque()
        """Those that are owed an answer, oldest first; only the first is ever run."""
        self._reading: Exchange | None = None
        """The exchange whose body is being read, answered or not; None in a head and between requests."""
        self._between = False
        """Nothing has been read of a next request."""
        self._virgin = True
        self._closed_to_input = self._paused = False
        self._write_paused = False
        self._writable: asyncio.Future[None] | None = None
        self._allowed_s: float | None = None
        self._target = b""
        self._headers: Headers = []
        self._chunk_bytes = 0
        self._head_bytes = 0
        """Of the chunks that hold nothing but the head which is being read."""
        self._head_slack_bytes = 0
        """The chunk before those: the head may have begun in it."""
        self._plain_head: bytes | None = None

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # After `Connection: close` anything may follow; it must not turn the answer into a 400.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    # -- the transport's calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.deadline_s = self._loop.time() + self._limits.head_s
        if not self.server.admit(self):
            self._refuse(TOO_MANY)

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop()
        self._parser = self._reading = None
        self.resume_writing()
        self.server.forget(self)

    def data_received(self, data: bytes) -> None:
        if self._closed_to_input:
            return
        if self._between:
            self._between = False
            self._allowed_s = self._limits.head_s  # also for the blank lines that may precede a request
        self._virgin = False
        self._chunk_bytes = len(data)
        if self._reading is None:
            self._head_bytes += self._chunk_bytes
        refusal = self._feed(data)
        if refusal is None and self._reading is None and self._head_bytes > self._limits.head_bytes:
            refusal = HEAD_TOO_LARGE
        if refusal is not None:
            self._refuse(refusal)
            return
        if self._allowed_s is not None:
            self.deadline_s = self._loop.time() + self._allowed_s
            self._allowed_s = None
        self._run_next()

    def eof_received(self) -> bool:
        if self._limits.half_close:
            self.close()
        return self._limits.half_close and bool(self._exchanges)

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._run_next()

    # -- the parser's calls

    def _feed(self, data: bytes) -> Refusal | None:
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if self._plain_head is None:
                    return MALFORMED  # CONNECT
                # The parser stops there and would drop the body (Java's HttpClient sends one with `Upgrade: h2c`). We
                # offer no other protocol, so the request is read again as the plain one that it also is.
                data, self._plain_head = self._plain_head + data[upgrade.args[0] :], None
                self._parser = self._new_parser()
            except httptools.HttpParserError as error:
                return _refusal(error)
            else:
                return None

    def on_message_begin(self) -> None:
        self._between = False
        self._allowed_s = self._limits.head_s
        self._target = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser, limit_bytes = self._parser, self._limits.head_bytes
        head = Head(parser.get_method(), self._target, parser.get_http_version(), self._headers)
        # Exact only where it matters: chunks may hold more than this head.
        if self._head_bytes + self._head_slack_bytes > limit_bytes and head.size_bytes() > limit_bytes:
            raise _Refused(HEAD_TOO_LARGE)
        if parser.should_upgrade():
            self._plain_head = head.without_upgrade() if head.method != b"CONNECT" else None
            return
        self._headers = []  # trailers are not the head's
        self._allowed_s = self._limits.body_s
        exchange = self._reading = self.server.app.open(self, head)
        # Without a header that names it, which the answer does not have, an HTTP/1.0 client knows no keep-alive.
        exchange.keep_alive = head.version == "1.1" and parser.should_keep_alive()
        self._exchanges.append(exchange)
        if len(self._exchanges) > 1:
            self.pause_reading()

    def on_body(self, data: bytes) -> None:
        exchange = self._reading
        assert exchange is not None
        if not exchange.ignores_body:
            exchange.on_body(data)
            return
        exchange.discarded_bytes += len(data)
        if exchange.discarded_bytes > self._limits.discard_bytes:
            raise _Refused(BODY_TOO_LARGE)

    def on_message_complete(self) -> None:
        exchange = self._reading
        if exchange is None:
            return  # an upgrade: its body is still to be read
        self._reading = None
        self._between = True
        if self._exchanges:
            self.deadline_s, self._allowed_s = _NEVER, None
        else:
            self._allowed_s = self.server.keep_alive_s
        self._head_bytes, self._head_slack_bytes = 0, self._chunk_bytes
        exchange.whole = exchange.ready = True
        exchange.on_whole()

    # -- the exchanges' calls

    def write(self, head: bytes, body: bytes) -> None:
        """Send both at once."""
        if len(body) < _JOINED_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))  # one writev, without copying megabytes

    async def writable(self) -> None:
        """Wait until the peer has read most of what was written."""
        while self._write_paused:
            self._writable = self._loop.create_future()
            await self._writable

    def finish(self, exchange: Exchange) -> None:
        """The running exchange has been answered: on to the next."""
        exchange.answered = exchange.ignores_body = True
        self._exchanges.popleft()
        if not exchange.keep_alive:
            self._abandon()
            return
        if self._exchanges:
            self._run_next()
        elif self._between:
            self.deadline_s = self._loop.time() + self.server.keep_alive_s
        if self._paused and len(self._exchanges) < 2:
            self.resume_reading()

    def pause_reading(self) -> None:
        """Take no more for now; deadlines of what is not read do not run."""
        if not self._paused:
            self._paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on reading."""
        if self._paused and not self._closed_to_input:
            self._paused = False
            self.transport.resume_reading()
            if not self._between:
                allowed_s = self._limits.head_s if self._reading is None else self._limits.body_s
                self.deadline_s = self._loop.time() + allowed_s

    def _run_next(self) -> None:
        """Run the oldest exchange, if it may and no written answer waits to be read."""
        if not self._exchanges or self._write_paused:
            return
        first = self._exchanges[0]
        if not first.ready:
            first.ask_for_body()
        elif first.task is None:
            first.task = self._loop.create_task(self._run(first))
            self.server.running.add(first)

    async def _run(self, exchange: Exchange) -> None:
        try:
            await exchange.run()
        finally:
            self.server.running.discard(exchange)
            if not exchange.answered and not exchange.lost:
                self._abandon()

    # -- ends

    def close(self) -> None:
        """Read no more, and close behind the answers that are owed."""
        self._closed_to_input = True
        self.deadline_s = _NEVER
        reading = self._reading
        if reading is not None and not reading.answered:
            self._exchanges.pop().on_lost()
        if self._exchanges:
            self._exchanges[-1].keep_alive = False
            self._run_next()
        else:
            self.transport.close()

    def give_up(self) -> None:
        """The deadline has passed."""
        if self._virgin or self._between:
            self._abandon()  # idle, or a browser's speculative connection: nothing to answer
        elif not self._paused:
            self._refuse(TOO_SLOW)

    def _refuse(self, refusal: Refusal) -> None:
        """Close, and say why if that is the next thing that the client expects to read."""
        self.server.refused[refusal.error_type] += 1
        reading = self._reading
        owed = len(self._exchanges) - (reading is not None and not reading.answered)
        if not owed and not (reading is not None and reading.begun):
            self.transport.write(refusal.response)
        self.close()

    def _abandon(self) -> None:
        """Close now, whatever is owed."""
        self._drop()
        self.transport.close()

    def _drop(self) -> None:
        self._closed_to_input = True
        self.deadline_s = _NEVER
        for exchange in self._exchanges:
            exchange.on_lost()
        self._exchanges.clear()


def _refusal(error: httptools.HttpParserError) -> Refusal:
    cause = error.__context__
    if isinstance(cause, _Refused):
        return cause.refusal
    if cause is not None and not isinstance(cause, httptools.HttpParserError):
        _log.error("a request could not be read", exc_info=cause)
    return MALFORMED
