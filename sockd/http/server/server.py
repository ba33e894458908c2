"""The HTTP server: sockets, the connections accepted from them, a clock for both, and the drain.

One timer, once a second, writes the Date header and looks at all deadlines. Signals are the daemon's.

Owns its sockets, from construction on, and the connections accepted from them. The file of a Unix socket stays: clients
are refused just as clearly, and the next owner replaces it (`bind_unix`), as it must after a crash.
"""

from __future__ import annotations

import asyncio
import heapq
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from email.utils import formatdate
from itertools import islice

from sockd.http.server.awaited import AwaitedExchanges
from sockd.http.server.bounds.buffers import BufferBudget
from sockd.http.server.bounds.peer_waits import PeerWaits
from sockd.http.server.connection import Application, Connection
from sockd.http.server.exchange import Exchange
from sockd.http.server.limits import ConnectionLimits, allowed_s
from sockd.http.server.listening.accept_queue import AcceptQueue
from sockd.http.server.listening.listener import Listener
from sockd.http.server.listening.turns import UNIT_BYTES, Turns
from sockd.http.server.transport import READ_BYTES, Transport

NEW_SHARE, LEAST_NEW = 4, 64
"""The share of all connections that may have asked for nothing yet, and the least number of them; and how many may at least,
and in a flood."""
IDLE_S = 1.0
"""How long a connection must have been idle until a server that leaves closes it: its client may be about to ask."""
LOOK_S = 0.05
"""How often a server that leaves looks for connections that have become idle."""
BUFFER_BYTES = 256 << 20
"""If no budget is given."""
ENDED_AT_ONCE = 64
"""Connections whose deadline has passed, in one turn of the loop."""


class HttpServer:
    """One application on one or more bound sockets."""

    def __init__(
        self,
        app: Application,
        sockets: Sequence[socket.socket],
        *,
        limits: ConnectionLimits | None = None,
        keep_alive_s: int = 75,
        buffers: BufferBudget | None = None,
        fields: str = "",
    ) -> None:
        """Args: sockets: bound, not listening (`listening.sockets`); buffers: of all servers of the worker; fields: lines in the
        head of each answer."""
        self._sockets = list(sockets)
        self.addresses = [sock.getsockname() for sock in sockets]
        self.app = app
        self.limits = limits or ConnectionLimits()
        self.keep_alive_s = keep_alive_s
        self.allowed_s = allowed_s(self.limits, keep_alive_s)
        self.buffers = buffers or BufferBudget(BUFFER_BYTES)
        self.waits: PeerWaits[Connection] = PeerWaits()
        self.fields = ""
        self._own_fields = fields
        self.retiring = False
        """Each answer closes its connection: its client comes to the next worker."""
        self.running: set[Exchange] = set()
        """Exchanges that are being answered. A function whose client has gone is among them, its connection is not."""
        self.refused: Counter[str] = Counter()
        """Requests refused before the application saw them, by error type."""
        self.scratch = memoryview(bytearray(READ_BYTES))
        """Where connections read to."""
        self._connections: set[Connection] = set()
        self._new: OrderedDict[Connection, None] = OrderedDict()
        """Connections that have not asked for anything yet, the oldest first."""
        self._flooded = False
        """There were too many of those since the last tick."""
        self._closing = False
        self._none_left = asyncio.Event()
        self._is_open = False
        self._listeners: list[Listener] = []
        self._ticking: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The bound TCP port (of the first socket)."""
        port: int = self.addresses[0][1]
        return port

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """The listening sockets, which the server owns."""
        return self._sockets

    @property
    def connections(self) -> int:
        """Open connections now."""
        return len(self._connections)

    async def start(self) -> None:
        """Listen; on return the kernel accepts connections."""
        self.turns = Turns()
        self._accept_queue = AcceptQueue(self.turns)
        self._is_open = True
        self._tick()
        self._listeners = [Listener(sock, self.turns, self._let_in, self._free_a_descriptor) for sock in self._sockets]

    def _let_in(self, client: socket.socket) -> int:
        connection = Connection(self)
        transport = Transport(client, connection, self.scratch, self._accept_queue)
        connection.connection_made(transport)
        transport.resume_reading()
        return 1 + transport.read() // UNIT_BYTES

    def _tick(self) -> None:
        """An origin server with a clock must send Date (RFC 9110, 6.6.1); once a second is its resolution."""
        loop = asyncio.get_running_loop()
        now = time.time()
        self.fields = f"date: {formatdate(now, usegmt=True)}\r\n{self._own_fields}"
        self._ticking = loop.call_later(1.0 - now % 1.0, self._tick)
        self._flooded = False
        now_s = loop.time()
        late = [each for each in self._connections if each.deadline_s < now_s]
        self._give_up(iter(late))

    def _give_up(self, late: Iterator[Connection]) -> None:
        """End those whose deadline has passed, if it still has; some in each turn."""
        loop = asyncio.get_running_loop()
        some = list(islice(late, ENDED_AT_ONCE))
        for connection in some:
            if connection.deadline_s < loop.time():
                connection.give_up()
        if some:
            loop.call_soon(self._give_up, late)

    def admit(self, connection: Connection) -> bool:
        """Take a new connection into account; False if it is to be turned away.

        When there are too many, it takes the place of one that is owed nothing: a client that opens connections and leaves
        them idle, or sends a head byte by byte, shuts no other client out. Of those that have never asked for anything there
        is a quarter at most, and once there were more, few for the rest of a second: a thousand that end together keep the
        loop for 10 ms and more."""
        self._new[connection] = None
        if len(self._new) > (LEAST_NEW if self._flooded else max(self.limits.connections // NEW_SHARE, LEAST_NEW)):
            self._flooded = True
            self._thin_out()
        if len(self._connections) >= self.limits.connections:
            self._make_room_for(connection)
        self._connections.add(connection)
        return len(self._connections) <= self.limits.connections and not self._closing

    def _thin_out(self) -> None:
        """End the oldest of those that have asked for nothing, two for one that has come."""
        for _ in range(2):
            oldest, _ = self._new.popitem(last=False)
            if oldest.owed_nothing:
                self._connections.discard(oldest)
                oldest.make_way()

    def has_asked(self, connection: Connection) -> None:
        """Count a connection as active: the head of its first request is complete."""
        self._new.pop(connection, None)

    def _make_room_for(self, newcomer: Connection) -> None:
        """POLICY: a source whose connections wait for their peers in more places than its share loses the longest idle of
        these to newcomers of other sources. Its own newcomers take the places of its own idle connections only. So a source
        may have all places while no other wants them, and clients behind one proxy are one source, in order of arrival."""
        waits = self.waits
        waits.find_sources()
        largest, count = waits.largest()
        if not count:
            self._make_room()
            return
        share = self.limits.connections // (waits.sources + 1)
        if waits.count(newcomer.source) > share:
            self._make_room(newcomer.source)
        elif not (count > share and self._end_oldest_of(largest)):
            self._make_room()

    def _free_a_descriptor(self) -> None:
        self.waits.find_sources()
        if not self._make_room():
            self._end_oldest_of(self.waits.largest()[0])

    def _end_oldest_of(self, source: str) -> bool:
        """End the connection of a source whose peer has done nothing for the longest time; False if none can be spared."""
        some = islice(self.waits.of(source), ENDED_AT_ONCE)
        oldest = next((connection for connection in some if connection.waits_for_its_peer), None)
        if oldest is None:
            return False
        self._connections.discard(oldest)
        oldest.make_way()
        return True

    def _make_room(self, source: str = "") -> bool:
        """End the connections, of one source or any, that are owed nothing and would be given up first. Some at a time:
        finding them looks at all."""
        owed_nothing = [connection for connection in self._connections if connection.owed_nothing]
        count = max(1, self.limits.connections // 64)
        first = heapq.nsmallest(count, owed_nothing, key=lambda each: each.deadline_s)
        some = [connection for connection in first if not source or connection.source == source]
        for connection in some:
            self._connections.discard(connection)
            connection.make_way()
        return bool(some)

    def forget(self, connection: Connection) -> None:
        """Remove a connection that is closed."""
        self._connections.discard(connection)
        self._new.pop(connection, None)
        self.waits.end(connection)
        if not self._connections:
            self._none_left.set()

    async def running_ended(self) -> None:
        """Wait until the requests that run now have ended, but for answers without an end. New ones are served."""
        self.running = running = AwaitedExchanges(self.running)
        await running.ended()

    def retire(self, retiring: bool = True) -> None:
        """Have each answer close its connection from now on, or no more. Connections are still accepted."""
        self.retiring = retiring
        if retiring:
            for connection in self._connections:
                connection.retire()

    async def leave(self, ends_s: float) -> None:
        """Accept no more, and serve the open connections until each has had an answer or was idle, or until the deadline.

        Nothing is refused and nothing is cut, unlike in `aclose`. Connections that wait in the accept queue stay there for
        another process that has the same sockets, and are reset if there is none.

        Args: ends_s: the deadline, by the loop's clock."""
        self.retire()
        self._close_listeners()
        loop = asyncio.get_running_loop()
        while self._is_awaited() and loop.time() < ends_s:
            for connection in list(self._connections):
                if connection.has_been_idle(IDLE_S):
                    connection.drain()
            # Connections become idle by the passing of time, of which there is no event.
            await self._drained(min(LOOK_S, ends_s - loop.time()))

    def _is_awaited(self) -> bool:
        """Return whether a connection is open whose answer has an end."""
        endless = {exchange.connection for exchange in self.running if exchange.endless}
        return any(connection not in endless for connection in self._connections)

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()

    async def aclose(self, drain_s: float) -> None:
        """Stop accepting, close idle connections, let requests finish for `drain_s`, then cancel what is left.

        Idempotent. Cancelled requests are answered by the application if it wants to."""
        self._closing = True
        self._close_listeners()
        if not self._is_open:
            return
        self._is_open = False
        for connection in list(self._connections):
            connection.drain()
        await self._drained(drain_s)
        running = list(self.running)
        for exchange in running:
            exchange.cancel()
        tasks = [exchange.task for exchange in running if exchange.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        for connection in list(self._connections):
            connection.transport.abort()
        await self._drained(1.0)
        if self._ticking is not None:
            self._ticking.cancel()
        self._accept_queue.close()

    async def _drained(self, timeout_s: float) -> None:
        self._none_left.clear()
        if self._connections:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._none_left.wait(), timeout_s)
