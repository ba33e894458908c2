"""Room for the body that a connection reads: a large one is counted in the buffer budget before it is read on.

A layer of `Connection`, above what it writes. Owns the connection's place in the queue for room (`Input.ROOM_AWAITED`).
"""

from __future__ import annotations

from collections import deque

from sockd.base.errors import RequestTooLarge
from sockd.http.server.bounds.buffers import COPIES, PLACE_BYTES
from sockd.http.server.exchange import Exchange
from sockd.http.server.limits import ConnectionLimits
from sockd.http.server.outgoing import Outgoing
from sockd.http.server.states import NO_ROOM_LEFT, ROOM_CAME, Input, Output, Payload

# A member of an enumeration that is asked of its class costs as much as a call, and these are asked for each request.
_DROPPED = Payload.DROPPED


class BodyRoom(Outgoing):
    """The part of a connection that waits for room."""

    def __init__(self, limits: ConnectionLimits) -> None:
        super().__init__(limits)
        self.exchanges: deque[Exchange] = deque()
        """Exchanges that are owed an answer, oldest first; only the first is ever run."""
        self.reading: Exchange | None = None
        """The exchange whose body is being read, answered or not."""
        self._body_bytes = 0
        """Bytes of the body that is being read, while they are not counted in the budget."""

    def _await_body(self, count: int) -> None:
        """So many bytes have come, and the body is not whole. What one read of the socket brings is not counted."""
        self.server.waits.begin(self)
        exchange = self.reading
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
        if len(self.exchanges) < 2:
            self.resume_reading()
        self._loop.call_soon(self.run_next)

    def _wait_for_no_room(self) -> None:
        """Leave the queue for room: no more of the body is read, also if its function goes on."""
        if self.input is Input.ROOM_AWAITED and self.reading is not None:
            self.reading.release()

    def body_dropped(self) -> None:
        """An exchange has let go of its body to be answered with an error; what still comes of it is dropped."""
        self._room_came()

    def _body_ended(self) -> None:
        if self.output is Output.TAKEN:
            self.server.waits.end(self)
