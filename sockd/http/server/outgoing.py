"""What the peer of a connection has not taken of its answers (`Output`).

A layer of `Connection`, above its intake. Owns what is counted of these answers in the buffer budget, and the future of an
exchange that waits to write more.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from sockd.http.server.bounds.buffers import PLACE_BYTES, Buffer, BufferBudget
from sockd.http.server.bounds.peer_waits import PeerWaits
from sockd.http.server.bounds.sources import source_of
from sockd.http.server.intake import Intake, Sources
from sockd.http.server.limits import ConnectionLimits
from sockd.http.server.states import ALL_SENT, FULL, NOT_FULL, SOME_UNSENT, UNFINISHED, Output

SLOW_S = 2.0
"""Without a byte of it being taken, an answer may be cut when its place or its room is needed."""
_FULL = Output.FULL
_JOINED_BYTES = 64 * 1024


class Budgets(Sources, Protocol):
    """The server, as far as its connections share its memory."""

    @property
    def buffers(self) -> BufferBudget: ...
    @property
    def waits(self) -> PeerWaits[Any]: ...


class Outgoing(Intake):
    """The part of a connection that writes answers."""

    server: Budgets

    def __init__(self, limits: ConnectionLimits) -> None:
        super().__init__(limits)
        self.output = Output.TAKEN
        self.taken_s = 0.0
        """By the loop's clock, when the client last took something of an answer of which some is unsent."""
        self.known_source: str | None = None
        self._unread_answer: Buffer | None = None
        """What is counted of answers that the client has not taken."""
        self._writable: asyncio.Future[None] | None = None

    def run_next(self) -> None:
        """Run the oldest exchange, if it may and no written answer waits to be read."""
        raise NotImplementedError

    @property
    def is_slow(self) -> bool:
        """Whether the client has taken nothing of an answer for a while."""
        return self._loop.time() > self.taken_s + SLOW_S

    @property
    def source(self) -> str:
        """Where it comes from; the kernel is asked once."""
        if self.known_source is None:
            self.known_source = source_of(self.transport)
        return self.known_source

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

    def pause_writing(self) -> None:
        self.output = FULL[self.output]

    def resume_writing(self) -> None:
        self.output = NOT_FULL[self.output]
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self.run_next()

    def unsent_changed(self, nbytes: int) -> None:
        if not nbytes:
            self.close_unread_answer()
            return
        self.output = SOME_UNSENT[self.output]
        self.taken_s = self._loop.time()
        self.server.waits.begin(self)
        if nbytes <= PLACE_BYTES:
            return
        if self._unread_answer is None:
            self._unread_answer = self.server.buffers.open(self.source, self._drop_unread_answer)
        self._unread_answer.set(nbytes)

    def _drop_unread_answer(self) -> bool:
        """Cut an answer of which the client has taken nothing for a while."""
        if not self.is_slow:
            return False
        self.close_unread_answer()
        self.transport.abort()
        return True

    def close_unread_answer(self) -> None:
        """Note that nothing is unsent any more."""
        self.output = ALL_SENT[self.output]
        if self.input not in UNFINISHED:
            self.server.waits.end(self)
        if self._unread_answer is not None:
            self._unread_answer.close()
            self._unread_answer = None
