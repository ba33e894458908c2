"""One HTTP connection: requests to exchanges, run in order and one at a time, and their answers back.

It ends without losing an answer and without waiting for ever. A peer that sends requests without reading answers is not
read from either: at most one of its answers and one chunk of its requests are kept.

Owns its transport and its exchanges; a function whose client has gone outlives both. Knows nothing of functions.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING

from sockd.http.exchange import Exchange
from sockd.http.head import Head
from sockd.http.reader import RequestReader
from sockd.http.refusals import TOO_MANY, TOO_SLOW, Refusal
from sockd.http.transport import READ_BYTES, Transport
from sockd.http.turns import PLACES, UNIT_BYTES

if TYPE_CHECKING:
    from sockd.http.server import HttpServer

_NEVER = math.inf
_JOINED_BYTES = 64 * 1024


class Connection(RequestReader):
    """What is at the other end of each accepted socket."""

    def __init__(self, server: HttpServer) -> None:
        super().__init__(server.limits)
        self.server = server
        self.transport: Transport
        self.deadline_s = _NEVER
        """By the loop's clock, when `give_up` is due. Seldom exact, so that no request needs a timer."""
        self._loop = asyncio.get_running_loop()
        self._exchanges: deque[Exchange] = deque()
        """Those that are owed an answer, oldest first; only the first is ever run."""
        self._reading: Exchange | None = None
        """The exchange whose body is being read, answered or not."""
        self._unread: list[bytes] = []
        """What has come and waits for this connection's turn."""
        self._held = False
        """It is not read from until then."""
        self._virgin = self._new = True
        self._closed_to_input = False
        self.half_closed = False
        """The client will send no more: it may wait for its answers, or be gone."""
        self._paused = False
        self._write_paused = False
        self._writable: asyncio.Future[None] | None = None

    # -- the transport's calls

    def connection_made(self, transport: Transport) -> None:
        """It is open; from now on the transport tells it what happens."""
        self.transport = transport
        self.deadline_s = self._loop.time() + self.limits.head_s
        if not self.server.admit(self):
            self._refuse(TOO_MANY)

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop()
        self.close_reader()
        self.resume_writing()
        self.server.forget(self)

    def buffer_updated(self, nbytes: int) -> None:
        if self._closed_to_input:
            return
        self._virgin = False
        data = bytes(self.server.scratch[:nbytes])
        turns, is_large = self.server.turns, nbytes == READ_BYTES
        if turns.is_taken or (not (self._unread or is_large) and turns.may_go(self)):
            self._take(data)
            return
        if not (self._unread or self._held):
            turns.wait(self)
        self._unread.append(data)
        if is_large and not self._held:
            self._held = True  # or the loop would read megabytes before anybody else's turn
            self.transport.pause_reading()

    def place(self) -> int:
        """Those who asked for the same target last wait in one queue."""
        return hash(self._target) % PLACES

    def go_on(self) -> int:
        """Take what has come, in its turn or because there is no other; returns how many units of a turn it was."""
        unread, self._unread = self._unread, []
        if unread:
            data = unread[0] if len(unread) == 1 else b"".join(unread)
            count = len(data)
            if not self._closed_to_input:
                self._take(data)
        else:
            count = self.transport.read() if self._held and not self._paused else 0
        if self._held:
            self._hold(count >= READ_BYTES)
        return 1 + count // UNIT_BYTES

    def _hold(self, is_large: bool) -> None:
        """Read the rest of something large in turns of its own, as long as the kernel has more of it."""
        self._held = is_large and not self._paused and not self.transport.is_closing()
        if self._held:
            self.server.turns.wait(self)
        elif not self._paused:
            self.transport.resume_reading()

    def _take(self, data: bytes) -> None:
        refusal = self.feed(data)
        if refusal is not None:
            self._refuse(refusal)
            return
        if self.allowed_s is not None:
            self.deadline_s = self._loop.time() + self.allowed_s
            self.allowed_s = None
        if self._reading is not None:
            self.transport.keep()
        self._run_next()

    def eof_received(self) -> bool:
        self.half_closed = True
        self.go_on()
        if self._exchanges:
            self._exchanges[0].on_gone()
        if self.limits.half_close:
            self.close()
        return self.limits.half_close and bool(self._exchanges)

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._run_next()

    # -- the reader's calls

    def on_head(self, head: Head, *, keep_alive: bool) -> None:
        if self._new:
            self._new = False
            self.server.has_asked(self)
        exchange = self._reading = self.server.app.open(self, head)
        exchange.keep_alive = keep_alive
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
        if exchange.discarded_bytes > self.limits.discard_bytes:
            self.refuse_body()

    def on_whole(self) -> None:
        exchange, self._reading = self._reading, None
        assert exchange is not None
        exchange.whole = exchange.ready = True
        exchange.on_whole()
        if self._exchanges:
            self.deadline_s, self.allowed_s = _NEVER, None
        else:
            self.allowed_s = self.server.keep_alive_s

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
            self._loop.call_soon(self._run_next)  # when what this one had is free for the next
        elif self.between:
            self.deadline_s = self._loop.time() + self.server.keep_alive_s
            self.transport.keep()
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
            if not self._held:
                self.transport.resume_reading()
            if not self.between:
                allowed_s = self.limits.head_s if self._reading is None else self.limits.body_s
                self.deadline_s = self._loop.time() + allowed_s

    def _run_next(self) -> None:
        """Run the oldest exchange, if it may and no written answer waits to be read."""
        if not self._exchanges or self._write_paused:
            return
        first = self._exchanges[0]
        if not first.ready:
            first.ask_for_body()
        elif not first.started:
            first.started = True
            self.server.running.add(first)
            first.start()

    def ended(self, exchange: Exchange) -> None:
        """It has run to its end, and has answered or never will."""
        self.server.running.discard(exchange)
        if not exchange.answered and not exchange.lost:
            self._abandon()

    # -- ends

    def drain(self) -> None:
        """Close behind the answers to all that has come."""
        self.go_on()
        if not self._closed_to_input:
            self.close()

    def looks_gone(self) -> bool:
        """Whether the client will send no more, told by the kernel where it has not been read yet."""
        return self.half_closed or (not self.transport.is_kept and self.transport.has_hung_up())

    def close(self) -> None:
        """Read no more, and close behind the answers that are owed."""
        self._closed_to_input = True
        self.deadline_s = _NEVER
        reading, self._reading = self._reading, None
        if reading is not None and not reading.answered:
            self._exchanges.pop().on_lost()
        if self._exchanges:
            self._exchanges[-1].keep_alive = False
            self._run_next()
        else:
            self.transport.close()

    @property
    def owed_nothing(self) -> bool:
        """No request has been read to the end of its head and not been answered."""
        return not (self._exchanges or self._reading or self._unread or self._closed_to_input)

    def make_way(self) -> None:
        """Close, for another to have the place; a client that had begun a request is told so."""
        if not (self._virgin or self.between):
            self.transport.write(TOO_MANY.response)
        self._abandon()

    def give_up(self) -> None:
        """The deadline has passed."""
        if self._unread or self._held:
            return  # it is us who are late
        if self._virgin or self.between:
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
        self._reading = None
        for exchange in self._exchanges:
            exchange.on_lost()
        self._exchanges.clear()
