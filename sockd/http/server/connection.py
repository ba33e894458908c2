"""One HTTP connection: it parses requests into exchanges, runs them in order, one at a time, and sends their answers.

    Connection       the exchanges, in order
    Patience         deadlines; ends the connections of clients that miss them
    BodyRoom         room for a large body
    Outgoing         answers, and what the peer has not taken of them
    Intake           bytes, at once or in turns
    RequestReader    bytes to heads and bodies

These are layers of one object: the parser and the transport call methods of one, and objects that hold each other would wait for
the garbage collector.

Its states are those of `sockd.http.server.states`. It ends without losing an answer and within bounded time. It does not read
from a peer that sends requests without reading answers: at most one answer and one chunk of requests are kept.

Owns its transport and its exchanges; a function whose client has gone outlives both. Knows nothing of functions.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from sockd.base.errors import BuffersFull
from sockd.http.server.bounds.buffers import Buffer
from sockd.http.server.bounds.patience import Allowing, Patience
from sockd.http.server.exchange import Exchange
from sockd.http.server.messages.head import Head
from sockd.http.server.messages.refusals import TOO_MANY, Refusal
from sockd.http.server.states import (
    ALL_ANSWERED,
    DROP_BODY,
    DROPPED,
    ENDED,
    FINISHED,
    INPUT_ENDED,
    OVER,
    PAYLOAD_WHOLE,
    ROOM_CAME,
    STARTED,
    UNBEGUN,
    Flow,
    Input,
    Output,
    Payload,
    Stage,
)
from sockd.http.server.transport import Transport
from sockd.http.server.tunnel import Tunnel

# A member of an enumeration that is asked of its class costs as much as a call, and these are asked for each request.
_FIRST_HEAD, _SERVING = Input.FIRST_HEAD, Input.SERVING
_FULL = Output.FULL
_PAUSED = Flow.PAUSED
_DROPPED, _COLLECTED = Payload.DROPPED, Payload.COLLECTED
_WAITING = Stage.WAITING
PIPELINED = 16
"""Requests of one connection, behind others, that are not counted."""
EXCHANGE_BYTES = 2048
"""The memory of one exchange: an exchange and its head."""


class Application(Protocol):
    """What an `HttpServer` serves."""

    def open(self, connection: Connection, head: Head) -> Exchange:
        """The exchange of a request whose head has been read. Never waits.

        Raises: HttpParserInvalidURLError if its target has no path."""


class Server(Allowing, Protocol):
    """What the connections of one server share."""

    app: Application
    fields: str
    """Header lines of each answer, its date among them."""
    retiring: bool
    """Each answer closes its connection from now on."""
    running: set[Exchange]
    """Exchanges that are being answered. A function whose client has gone is among them, its connection is not."""
    refused: Counter[str]
    """Requests refused before the application saw them, by error type."""

    def admit(self, connection: Connection) -> bool:
        """Take a new connection into account; False if it is to be turned away."""

    def has_asked(self, connection: Connection) -> None:
        """Count a connection as active: the head of its first request is complete."""

    def forget(self, connection: Connection) -> None:
        """Remove a connection that is closed."""


class Connection(Patience):
    """What is at the other end of each accepted socket."""

    server: Server
    tunnel: Tunnel | None = None
    """Gets what comes, once the connection has switched to another protocol."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.limits)
        self.server = server
        self._pipeline: Buffer | None = None
        """What is counted of requests behind others, when there are many."""

    # -- the transport's calls

    def connection_made(self, transport: Transport) -> None:
        """Start with an open transport, which calls this object from now on."""
        self.transport = transport
        if not self.server.admit(self):
            self.refuse(TOO_MANY)

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop()
        self.close_unread_answer()
        self.close_reader()
        self.resume_writing()
        self.server.forget(self)

    def take(self, data: bytes) -> None:
        if self.tunnel is not None:
            self.tunnel.feed(data)
            return
        refusal = self.feed(data)
        if refusal is not None:
            self.refuse(refusal)
            return
        if self.reading is not None:
            self.transport.keep()
            self._await_body(len(data))
        self.run_next()

    def eof_received(self) -> bool:
        self.go_on()
        if self.tunnel is not None:
            self.tunnel.feed_eof()
            return True
        if self.exchanges:
            self.exchanges[0].on_gone()
        if self.limits.half_close:
            self.close()
        return self.limits.half_close and bool(self.exchanges)

    # -- the reader's calls

    def on_head(self, head: Head, *, keep_alive: bool) -> None:
        if self.input is _FIRST_HEAD:
            self.server.has_asked(self)
        exchange = self.reading = self.server.app.open(self, head)
        exchange.keep_alive = keep_alive and not self.server.retiring
        self.exchanges.append(exchange)
        self._body_bytes = 0
        if len(self.exchanges) > 1 or head.asks_for_websocket:  # what follows may be no HTTP
            self.pause_reading()
            if len(self.exchanges) > PIPELINED:
                self._hold_pipeline()

    def _hold_pipeline(self) -> None:
        """Count one more request that waits behind others. Each takes a hundred times its bytes."""
        if self._pipeline is None:
            self._pipeline = self.server.buffers.open(self.source, self._drop_pipeline)
        if not self._pipeline.grow(EXCHANGE_BYTES):
            self.refuse_pipeline()

    def _drop_pipeline(self) -> bool:
        self.abandon()
        return True

    def on_body(self, data: bytes) -> None:
        exchange = self.reading
        assert exchange is not None
        if exchange.payload is not _DROPPED:
            exchange.on_body(data)
            return
        exchange.discarded_bytes += len(data)
        if exchange.discarded_bytes > self.limits.discard_bytes:
            self.refuse_body()

    def on_whole(self, *, in_parts: bool) -> None:
        exchange, self.reading = self.reading, None
        assert exchange is not None
        if in_parts:
            self._body_ended()
        exchange.payload = PAYLOAD_WHOLE[exchange.payload]
        exchange.on_whole()
        if not self.exchanges:
            self.input, self.since_s = ALL_ANSWERED[self.input], self._loop.time()

    # -- the exchanges' calls

    def finish(self, exchange: Exchange) -> None:
        """The running exchange has been answered: on to the next."""
        exchange.stage, exchange.payload = FINISHED[exchange.stage], DROP_BODY[exchange.payload]
        self.exchanges.popleft()
        if self._pipeline is not None and len(self.exchanges) <= PIPELINED:
            self._pipeline.close()
            self._pipeline = None
        if not exchange.keep_alive:
            self.abandon()
            return
        if self.exchanges:
            self._loop.call_soon(self.run_next)  # when what this one had is free for the next
        elif self.input is _SERVING:
            self.input, self.since_s = ALL_ANSWERED[self.input], self._loop.time()
            self.transport.keep()
        if self.flow is _PAUSED and len(self.exchanges) < 2:
            if self.reading is exchange and self.input is Input.ROOM_AWAITED:  # the rest of its body is dropped
                exchange.release()
                self.input = ROOM_CAME[self.input]
            self.resume_reading()

    def switch(self) -> Tunnel:
        """Go on as a stream of bytes, which the running exchange reads and writes until it has ended."""
        self.tunnel = Tunnel(self)
        self.transport.keep()
        self.resume_reading()
        return self.tunnel

    def run_next(self) -> None:
        """Run the oldest exchange, if it may and no written answer waits to be read."""
        if not self.exchanges or self.output is _FULL:
            return
        first = self.exchanges[0]
        if first.payload is _COLLECTED:
            if self.input is not Input.ROOM_AWAITED:
                first.ask_for_body()
        elif first.stage is _WAITING:
            buffers = self.server.buffers
            if buffers.used > buffers.total and first.max_body_bytes and buffers.is_crowded_by(self.source):
                first.refuse(BuffersFull())
            first.stage = STARTED[first.stage]
            self.server.running.add(first)
            first.start()

    def ended(self, exchange: Exchange) -> None:
        """Remove an exchange that has run to its end, whether it was answered or not."""
        self.server.running.discard(exchange)
        if exchange.held is not None:
            exchange.release()
        if exchange.stage not in OVER:
            self.abandon()

    # -- ends

    def retire(self) -> None:
        """Close behind the next answer, if its head is still to be written."""
        if self.exchanges and self.exchanges[-1].stage in UNBEGUN:
            self.exchanges[-1].keep_alive = False

    def drain(self) -> None:
        """Close behind the answers to all that has come; a stream of another protocol is cut, as it has no end."""
        if self.tunnel is not None:
            self.abandon()
            return
        self.go_on()
        if self.input not in ENDED:
            self.close()

    def looks_gone(self) -> bool:
        """Whether the client will send no more. The kernel is asked if the end of the stream was not read yet."""
        return self.transport.is_at_eof or (not self.transport.is_kept and self.transport.has_hung_up())

    def close(self) -> None:
        """Read no more, and close behind the answers that are owed."""
        self._wait_for_no_room()
        self.input = INPUT_ENDED[self.input]
        self._body_ended()
        reading, self.reading = self.reading, None
        if reading is not None and reading.stage is not Stage.ANSWERED:
            self.exchanges.pop().on_lost()
        if self.exchanges:
            self.exchanges[-1].keep_alive = False
            self.run_next()
        else:
            self.abandon()

    def refuse(self, refusal: Refusal) -> None:
        """Close, and say why if that is the next thing that the client expects to read."""
        self.server.refused[refusal.error_type] += 1
        reading = self.reading
        owed = len(self.exchanges) - (reading is not None and reading.stage is not Stage.ANSWERED)
        if not owed and (reading is None or reading.stage in UNBEGUN):
            self.transport.write(refusal.response)
        self.close()

    def abandon(self) -> None:
        """Close now, whatever is owed."""
        self._drop()
        self.transport.close()

    def _drop(self) -> None:
        self._wait_for_no_room()
        self.input = DROPPED[self.input]
        self._body_ended()
        self.reading = None
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None
        for exchange in self.exchanges:
            exchange.on_lost()
        self.exchanges.clear()
        if self.tunnel is not None:
            self.tunnel.lose()
            self.tunnel = None
