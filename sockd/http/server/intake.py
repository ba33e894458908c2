"""What a connection takes from its socket: at once, in its turn, or not for now (`Flow`).

A layer of `Connection`, above the reader. Owns the bytes that wait for a turn. Knows nothing of exchanges.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from sockd.http.server.limits import ConnectionLimits
from sockd.http.server.listening.turns import PLACES, UNIT_BYTES, Turns
from sockd.http.server.messages.reader import RequestReader
from sockd.http.server.states import ENDED, HELD, PAUSED, RESUMED, TURN_ENDED, Flow, Input
from sockd.http.server.transport import READ_BYTES, Transport

# A member of an enumeration that is asked of its class costs as much as a call, and these are asked for each request.
_PAUSED = Flow.PAUSED


class Sources(Protocol):
    """The server, as far as its connections take from it."""

    @property
    def limits(self) -> ConnectionLimits: ...
    @property
    def scratch(self) -> memoryview:
        """Where connections read to."""

    @property
    def turns(self) -> Turns: ...


class Intake(RequestReader):
    """The part of a connection that its transport gives bytes to."""

    server: Sources
    transport: Transport

    def __init__(self, limits: ConnectionLimits) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(limits, self._loop.time)
        self.flow = Flow.READ
        self._unread: list[bytes] = []
        """What has come and waits for this connection's turn."""

    def take(self, data: bytes) -> None:
        """Read a chunk of requests, and run what can be run."""
        raise NotImplementedError

    @property
    def has_unread(self) -> bool:
        """Whether bytes wait for this connection's turn."""
        return bool(self._unread)

    @property
    def is_late(self) -> bool:
        """Whether it is the server that is late, and not the peer."""
        return self.has_unread or self.flow is Flow.HELD

    def buffer_updated(self, nbytes: int) -> None:
        if self.input in ENDED:
            return
        data = bytes(self.server.scratch[:nbytes])
        turns, is_large = self.server.turns, nbytes == READ_BYTES
        if turns.is_taken or (not (self._unread or is_large) and turns.may_go(self)):
            self.take(data)
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
                self.take(data)
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
