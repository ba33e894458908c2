"""One HTTP connection: it parses requests into exchanges, runs them in order, one at a time, and sends their answers.

Its states are those of `sockd.http.server.states`. It ends without losing an answer and within bounded time. It does not read
from a peer that sends requests without reading answers: at most one answer and one chunk of requests are kept.

Owns its transport and its exchanges; a function whose client has gone outlives both. Knows nothing of functions.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping
from typing import Protocol

from sockd.base.errors import BuffersFull, RequestTooLarge
from sockd.http.server.buffers import COPIES, PLACE_BYTES, Buffer, BufferBudget
from sockd.http.server.exchange import Exchange
from sockd.http.server.head import Head
from sockd.http.server.limits import ConnectionLimits
from sockd.http.server.peer_waits import PeerWaits
from sockd.http.server.reader import RequestReader
from sockd.http.server.refusals import NO_ROOM, TOO_MANY, TOO_SLOW, Refusal
from sockd.http.server.sources import source_of
from sockd.http.server.states import (
    ALL_ANSWERED,
    ALL_SENT,
    BETWEEN,
    DROP_BODY,
    DROPPED,
    ENDED,
    FINISHED,
    FULL,
    HELD,
    INPUT_ENDED,
    NO_ROOM_LEFT,
    NOT_FULL,
    OVER,
    PAUSED,
    PAYLOAD_WHOLE,
    RESUMED,
    ROOM_CAME,
    SOME_UNSENT,
    STARTED,
    TURN_ENDED,
    UNBEGUN,
    UNFINISHED,
    Flow,
    Input,
    Output,
    Payload,
    Stage,
)
from sockd.http.server.transport import READ_BYTES, Transport
from sockd.http.server.turns import PLACES, UNIT_BYTES, Turns

# A member of an enumeration that is asked of its class costs as much as a call, and these are asked for each request.
_FIRST_HEAD, _SERVING = Input.FIRST_HEAD, Input.SERVING
_FULL = Output.FULL
_PAUSED = Flow.PAUSED
_DROPPED, _COLLECTED = Payload.DROPPED, Payload.COLLECTED
_WAITING = Stage.WAITING
_JOINED_BYTES = 64 * 1024
PIPELINED = 16
"""Requests of one connection, behind others, that are not counted."""
EXCHANGE_BYTES = 2048
"""The memory of one exchange: an exchange and its head."""
SLOW_S = 2.0
"""Without a byte of it being taken, an answer may be cut when its place or its room is needed."""


class Application(Protocol):
    """What an `HttpServer` serves."""

    def open(self, connection: Connection, head: Head) -> Exchange:
        """The exchange of a request whose head has been read. Never waits.

        Raises: HttpParserInvalidURLError if its target has no path."""


class Server(Protocol):
    """What the connections of one server share."""

    app: Application
    limits: ConnectionLimits
    allowed_s: Mapping[Input, float]
    """How long a connection may be in each state."""
    buffers: BufferBudget
    turns: Turns
    waits: PeerWaits[Connection]
    date_line: str
    retiring: bool
    """Each answer closes its connection from now on."""
    running: set[Exchange]
    """Exchanges that are being answered. A function whose client has gone is among them, its connection is not."""
    refused: Counter[str]
    """Requests refused before the application saw them, by error type."""
    scratch: memoryview
    """Where connections read to."""

    def admit(self, connection: Connection) -> bool:
        """Take a new connection into account; False if it is to be turned away."""

    def has_asked(self, connection: Connection) -> None:
        """Count a connection as active: the head of its first request is complete."""

    def forget(self, connection: Connection) -> None:
        """Remove a connection that is closed."""


class Connection(RequestReader):
    """What is at the other end of each accepted socket."""

    def __init__(self, server: Server) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(server.limits, self._loop.time)
        self.server = server
        self.transport: Transport
        self.output = Output.TAKEN
        self.flow = Flow.READ
        self._exchanges: deque[Exchange] = deque()
        """Exchanges that are owed an answer, oldest first; only the first is ever run."""
        self._reading: Exchange | None = None
        """The exchange whose body is being read, answered or not."""
        self._unread: list[bytes] = []
        """What has come and waits for this connection's turn."""
        self._body_bytes = 0
        """Bytes of the body that is being read, while they are not counted in the budget."""
        self._pipeline: Buffer | None = None
        """What is counted of requests behind others, when there are many."""
        self._unread_answer: Buffer | None = None
        """What is counted of answers that the client has not taken."""
        self.known_source: str | None = None
        self._taken_s = 0.0
        """By the loop's clock, when the client last took something of an answer of which some is unsent."""
        self._writable: asyncio.Future[None] | None = None

    # -- the transport's calls

    def connection_made(self, transport: Transport) -> None:
        """Start with an open transport, which calls this object from now on."""
        self.transport = transport
        if not self.server.admit(self):
            self._refuse(TOO_MANY)

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop()
        self._close_unread_answer()
        self.close_reader()
        self.resume_writing()
        self.server.forget(self)

    def buffer_updated(self, nbytes: int) -> None:
        if self.input in ENDED:
            return
        data = bytes(self.server.scratch[:nbytes])
        turns, is_large = self.server.turns, nbytes == READ_BYTES
        if turns.is_taken or (not (self._unread or is_large) and turns.may_go(self)):
            self._take(data)
            return
        if not (self._unread or self.flow is Flow.HELD):
            turns.wait(self)
        self._unread.append(data)
        if is_large and self.flow is Flow.READ:
            self.flow = HELD[self.flow]  # or the loop would read megabytes before anybody else's turn
            self.transport.pause_reading()

    def place(self) -> int:
        """The queue in which this connection waits: connections that asked for the same target last share one."""
        return hash(self._target) % PLACES

    def go_on(self) -> int:
        """Take what has come, in its turn or because there is no other; returns how many units of a turn it was."""
        unread, self._unread = self._unread, []
        if unread:
            data = unread[0] if len(unread) == 1 else b"".join(unread)
            count = len(data)
            if self.input not in ENDED:
                self._take(data)
        else:
            count = self.transport.read() if self.flow is Flow.HELD else 0
        if self.flow is Flow.HELD:
            self._hold(count >= READ_BYTES)
        return 1 + count // UNIT_BYTES

    def _hold(self, is_large: bool) -> None:
        """Read the rest of something large in turns of its own, as long as the kernel has more of it."""
        if is_large and not self.transport.is_closing():
            self.server.turns.wait(self)
        else:
            self.flow = TURN_ENDED[self.flow]
            self.transport.resume_reading()

    def _take(self, data: bytes) -> None:
        refusal = self.feed(data)
        if refusal is not None:
            self._refuse(refusal)
            return
        if self._reading is not None:
            self.transport.keep()
            self._await_body(len(data))
        self._run_next()

    def _await_body(self, count: int) -> None:
        """So many bytes have come, and the body is not whole. What one read of the socket brings is not counted."""
        self.server.waits.begin(self)
        exchange = self._reading
        assert exchange is not None
        if exchange.held is not None:
            exchange.held.touch()
        elif exchange.payload is not _DROPPED and exchange.max_body_bytes > PLACE_BYTES:
            self._body_bytes += count
            length = exchange.head.content_length()
            if max(length, self._body_bytes) > PLACE_BYTES:
                self._hold_body(exchange, length or exchange.max_body_bytes)

    def _hold_body(self, exchange: Exchange, length: int) -> None:
        """Have a body counted that needs more than one read, before it is read on."""
        buffers, size = self.server.buffers, COPIES * length
        if size > buffers.total:
            exchange.refuse(RequestTooLarge(f"the worker has no room for a body of {length} bytes (http.buffer_mb)"))
            return
        exchange.held = buffers.open(self.source, exchange.give_way, self._room_came)
        if not exchange.held.grow(size):
            self.input = NO_ROOM_LEFT[self.input]
            exchange.held.wait(size)
            self.pause_reading()

    def _room_came(self) -> None:
        """The body may go on."""
        if self.input is Input.ROOM_AWAITED:
            self.input = ROOM_CAME[self.input]
        if len(self._exchanges) < 2:
            self.resume_reading()
        self._loop.call_soon(self._run_next)

    def _give_up_room(self) -> None:
        """There is none for this body, and there was none for as long as it may take."""
        if self._reading is None or not self._reading.give_way():
            self._refuse(NO_ROOM)

    def _wait_for_no_room(self) -> None:
        """Leave the queue for room: no more of the body is read, also if its function goes on."""
        if self.input is Input.ROOM_AWAITED and self._reading is not None:
            self._reading.release()

    def body_dropped(self) -> None:
        """An exchange has let go of its body to be answered with an error; what still comes of it is dropped."""
        self._room_came()

    @property
    def source(self) -> str:
        """Where it comes from; the kernel is asked once."""
        if self.known_source is None:
            self.known_source = source_of(self.transport)
        return self.known_source

    def eof_received(self) -> bool:
        self.go_on()
        if self._exchanges:
            self._exchanges[0].on_gone()
        if self.limits.half_close:
            self.close()
        return self.limits.half_close and bool(self._exchanges)

    def pause_writing(self) -> None:
        self.output = FULL[self.output]

    def resume_writing(self) -> None:
        self.output = NOT_FULL[self.output]
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._run_next()

    def unsent_changed(self, nbytes: int) -> None:
        if not nbytes:
            self._close_unread_answer()
            return
        self.output = SOME_UNSENT[self.output]
        self._taken_s = self._loop.time()
        self.server.waits.begin(self)
        if nbytes <= PLACE_BYTES:
            return
        if self._unread_answer is None:
            self._unread_answer = self.server.buffers.open(self.source, self._drop_unread_answer)
        self._unread_answer.set(nbytes)

    def _drop_unread_answer(self) -> bool:
        """Cut an answer of which the client has taken nothing for a while."""
        if self._taken_s + SLOW_S > self._loop.time():
            return False
        self._close_unread_answer()
        self.transport.abort()
        return True

    def _close_unread_answer(self) -> None:
        self.output = ALL_SENT[self.output]
        if self.input not in UNFINISHED:
            self.server.waits.end(self)
        if self._unread_answer is not None:
            self._unread_answer.close()
            self._unread_answer = None

    # -- the reader's calls

    def on_head(self, head: Head, *, keep_alive: bool) -> None:
        if self.input is _FIRST_HEAD:
            self.server.has_asked(self)
        exchange = self._reading = self.server.app.open(self, head)
        exchange.keep_alive = keep_alive and not self.server.retiring
        self._exchanges.append(exchange)
        self._body_bytes = 0
        if len(self._exchanges) > 1:
            self.pause_reading()
            if len(self._exchanges) > PIPELINED:
                self._hold_pipeline()

    def _hold_pipeline(self) -> None:
        """Count one more request that waits behind others. Each takes a hundred times its bytes."""
        if self._pipeline is None:
            self._pipeline = self.server.buffers.open(self.source, self._drop_pipeline)
        if not self._pipeline.grow(EXCHANGE_BYTES):
            self.refuse_pipeline()

    def _drop_pipeline(self) -> bool:
        self._abandon()
        return True

    def on_body(self, data: bytes) -> None:
        exchange = self._reading
        assert exchange is not None
        if exchange.payload is not _DROPPED:
            exchange.on_body(data)
            return
        exchange.discarded_bytes += len(data)
        if exchange.discarded_bytes > self.limits.discard_bytes:
            self.refuse_body()

    def on_whole(self, *, in_parts: bool) -> None:
        exchange, self._reading = self._reading, None
        assert exchange is not None
        if in_parts:
            self._body_ended()
        exchange.payload = PAYLOAD_WHOLE[exchange.payload]
        exchange.on_whole()
        if not self._exchanges:
            self.input, self.since_s = ALL_ANSWERED[self.input], self._loop.time()

    def _body_ended(self) -> None:
        if self.output is Output.TAKEN:
            self.server.waits.end(self)

    # -- the exchanges' calls

    def write(self, head: bytes, body: bytes) -> None:
        """Send both at once."""
        if len(body) < _JOINED_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))  # one writev, without copying megabytes

    async def writable(self) -> None:
        """Wait until the peer has read most of what was written."""
        while self.output is _FULL:
            self._writable = self._loop.create_future()
            await self._writable

    def finish(self, exchange: Exchange) -> None:
        """The running exchange has been answered: on to the next."""
        exchange.stage, exchange.payload = FINISHED[exchange.stage], DROP_BODY[exchange.payload]
        self._exchanges.popleft()
        if self._pipeline is not None and len(self._exchanges) <= PIPELINED:
            self._pipeline.close()
            self._pipeline = None
        if not exchange.keep_alive:
            self._abandon()
            return
        if self._exchanges:
            self._loop.call_soon(self._run_next)  # when what this one had is free for the next
        elif self.input is _SERVING:
            self.input, self.since_s = ALL_ANSWERED[self.input], self._loop.time()
            self.transport.keep()
        if self.flow is _PAUSED and len(self._exchanges) < 2:
            if self._reading is exchange and self.input is Input.ROOM_AWAITED:  # the rest of its body is dropped
                exchange.release()
                self.input = ROOM_CAME[self.input]
            self.resume_reading()

    def pause_reading(self) -> None:
        """Take no more for now; deadlines of what is not read do not run."""
        if self.flow is not _PAUSED:
            self.flow = PAUSED[self.flow]
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on reading."""
        if self.flow is _PAUSED and self.input is not Input.ROOM_AWAITED and self.input not in ENDED:
            self.flow = RESUMED[self.flow]
            self.transport.resume_reading()
            self.since_s = self._loop.time()

    def _run_next(self) -> None:
        """Run the oldest exchange, if it may and no written answer waits to be read."""
        if not self._exchanges or self.output is _FULL:
            return
        first = self._exchanges[0]
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
            self._abandon()

    # -- ends

    def retire(self) -> None:
        """Close behind the next answer, if its head is still to be written."""
        if self._exchanges and self._exchanges[-1].stage in UNBEGUN:
            self._exchanges[-1].keep_alive = False

    def has_been_idle(self, idle_s: float) -> bool:
        """Return whether the client is owed no answer and has sent nothing for so many seconds."""
        is_idle = self.owed_nothing and self.input in (Input.CONNECTED, Input.IDLE)
        return is_idle and self._loop.time() - self.since_s >= idle_s

    def drain(self) -> None:
        """Close behind the answers to all that has come."""
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
        reading, self._reading = self._reading, None
        if reading is not None and reading.stage is not Stage.ANSWERED:
            self._exchanges.pop().on_lost()
        if self._exchanges:
            self._exchanges[-1].keep_alive = False
            self._run_next()
        else:
            self._abandon()

    @property
    def deadline_s(self) -> float:
        """By the loop's clock, when `give_up` is due, so that no request needs a timer; infinite if nothing is waited for."""
        input_s = self.since_s + self.server.allowed_s[self.input]
        return input_s if self.output is Output.TAKEN else min(input_s, self._taken_s + self.limits.stall_s)

    @property
    def owed_nothing(self) -> bool:
        """No request has been read to the end of its head and not been answered."""
        return not (self._exchanges or self._reading or self._unread or self.input in ENDED)

    @property
    def waits_for_its_peer(self) -> bool:
        """For nothing else: its only request has not come whole, or its client does not take the answer."""
        if self.output is not Output.TAKEN:
            return self._loop.time() > self._taken_s + SLOW_S
        return self.input in UNFINISHED and all(exchange is self._reading for exchange in self._exchanges)

    def make_way(self) -> None:
        """Close, so that another connection gets the place. A client that has begun a request gets an error first."""
        if self.output is not Output.TAKEN:
            self.transport.abort()
            return
        reading = self._reading
        has_begun = self.input is not Input.CONNECTED and self.input not in BETWEEN
        if has_begun and (reading is None or reading.stage in UNBEGUN):
            self.transport.write(TOO_MANY.response)
        self._abandon()

    def give_up(self) -> None:
        """A deadline has passed."""
        if self.output is not Output.TAKEN and self._taken_s + self.limits.stall_s < self._loop.time():
            self.transport.abort()
        elif self._unread or self.flow is Flow.HELD:
            pass  # it is us who are late
        elif self.input is Input.ROOM_AWAITED:
            self._give_up_room()
        elif self.input in (Input.CONNECTED, Input.IDLE):
            self._abandon()  # idle, or a browser's speculative connection: nothing to answer
        elif self.flow is Flow.READ:
            self._refuse(TOO_SLOW)

    def _refuse(self, refusal: Refusal) -> None:
        """Close, and say why if that is the next thing that the client expects to read."""
        self.server.refused[refusal.error_type] += 1
        reading = self._reading
        owed = len(self._exchanges) - (reading is not None and reading.stage is not Stage.ANSWERED)
        if not owed and (reading is None or reading.stage in UNBEGUN):
            self.transport.write(refusal.response)
        self.close()

    def _abandon(self) -> None:
        """Close now, whatever is owed."""
        self._drop()
        self.transport.close()

    def _drop(self) -> None:
        self._wait_for_no_room()
        self.input = DROPPED[self.input]
        self._body_ended()
        self._reading = None
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None
        for exchange in self._exchanges:
            exchange.on_lost()
        self._exchanges.clear()
