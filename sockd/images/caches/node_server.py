"""The HTTP server of a cache node. Owns its listening socket and the connections.

Clients may be hostile: they cannot make the node hold more than its tiers plus CONNECTION_BYTES for each of a bounded number of
connections. A connection has one request under way, whose head and body are bounded before they are read, and which must
be complete within STALL_S, like the transmission of its answer. Nothing is stored that is not an intact stripe.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import socket
import time
from collections.abc import Coroutine
from typing import Any, cast

from sockd.images.caches.node_http import (
    END_OF_HEAD,
    MAX_HEAD_BYTES,
    BadHead,
    Request,
    answer_head,
    parse_request,
    stripe_key,
)
from sockd.images.caches.node_store import NodeStore
from sockd.images.caches.service_times import ServiceTimes
from sockd.images.caches.stripes import BadStripe, framed_bytes, is_intact, parse

MOST_CONNECTIONS = 1024
STALL_S = 10.0
"""For a request to arrive, or an answer to be taken."""
IDLE_S = 300.0
"""For a connection without a request."""
CONNECTION_BYTES = 1 << 20
"""At most for one connection: an incomplete request, what was read with it, and an answer."""
_SEND_BUFFER_BYTES = 512 << 10
_READ_BYTES = 8192
BACKLOG = 1024


class NodeServer:
    """A listening socket and what it serves."""

    def __init__(
        self, store: NodeStore, *, chunk_bytes: int, token: str = "", most_connections: int = MOST_CONNECTIONS
    ) -> None:
        """Args: token: what each request must have; empty: nothing."""
        self.store = store
        self.chunk_bytes = chunk_bytes
        self.max_body_bytes = framed_bytes(chunk_bytes)
        self._authorization = f"Bearer {token}".encode() if token else b""
        self._most_connections = most_connections
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.refused_connections = self.refused_requests = 0
        self.times = {b"GET": ServiceTimes(), b"PUT": ServiceTimes()}
        """From the arrival of a request's last byte until the socket has the answer."""

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; the address, with the port that the kernel chose for port 0. Raises: OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, port, backlog=BACKLOG)
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    async def start_on(self, bound: socket.socket) -> None:
        """Listen at a socket, which is owned from now on. Raises: OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), sock=bound, backlog=BACKLOG)

    async def aclose(self) -> None:
        """Close all connections and release the store."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.to_thread(self.store.close)

    def admit(self, connection: _Connection) -> bool:
        """Whether there is room for one more."""
        if len(self._connections) >= self._most_connections:
            self.refused_connections += 1
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: _Connection) -> None:
        self._connections.discard(connection)

    def may(self, request: Request) -> bool:
        """Whether the request has the token."""
        return not self._authorization or hmac.compare_digest(request.authorization, self._authorization)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that the server waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def status(self) -> bytes:
        """The counters."""
        store = self.store
        counters = {
            "memory_hits": store.memory_hits,
            "file_hits": store.file_hits,
            "misses": store.misses,
            "puts": store.puts,
            "dropped_writes": store.dropped_writes,
            "memory_bytes": store.held_bytes,
            "connections": len(self._connections),
            "refused_connections": self.refused_connections,
            "refused_requests": self.refused_requests,
            "get": self.times[b"GET"].summary(),
            "put": self.times[b"PUT"].summary(),
        }
        return json.dumps(counters).encode()


class _Connection(asyncio.BufferedProtocol):
    """One client. Requests are answered one after the other; what arrives meanwhile waits in the kernel."""

    _transport: asyncio.Transport
    _fd: int

    def __init__(self, server: NodeServer) -> None:
        self._server = server
        self._buffer = bytearray(_READ_BYTES)
        """What was received and belongs to no body."""
        self._filled = 0
        self._request: Request | None = None
        """The request whose body is incomplete."""
        self._body = bytearray()
        self._body_filled = 0
        self._is_reading_file = False
        self._is_full = False
        """The client has not taken the last answers."""
        self._since = time.monotonic()
        """Begin of the request or of the idle time."""
        self._arrived = self._since
        self._timer: asyncio.TimerHandle | None = None

    # ---- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._server.admit(self):
            self._refuse(503)
            return
        connected: socket.socket = self._transport.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._fd = connected.fileno()
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.forget(self)
        if self._timer is not None:
            self._timer.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        """A body is received where it will stay."""
        if self._request is not None:
            return memoryview(self._body)[self._body_filled :]
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._arrived = time.monotonic()
        if self._request is not None:
            self._body_filled += nbytes
        else:
            if not self._filled and not self._is_busy:
                self._since = self._arrived
            self._filled += nbytes
        self._proceed()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_full = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_full = False
        self._resume()

    # ---- requests

    def abort(self) -> None:
        self._transport.abort()

    def _proceed(self) -> None:
        """Answer what is complete."""
        while not self._is_busy and not self._transport.is_closing():
            if self._request is None:
                try:
                    self._request = self._next_head()
                except BadHead as error:
                    self._refuse(error.status)
                    return
            request = self._request
            if request is None or self._body_filled < request.body_bytes:
                return
            body, self._body, self._body_filled, self._request = self._body, bytearray(), 0, None
            self._answer(request, body)
            self._since = time.monotonic()

    def _next_head(self) -> Request | None:
        """The next request, whose body is in `_body` as far as it has arrived; None: its head is incomplete. Raises: BadHead."""
        end = self._buffer.find(END_OF_HEAD, 0, min(self._filled, MAX_HEAD_BYTES))
        if end < 0:
            if self._filled >= MAX_HEAD_BYTES:
                raise BadHead(431, "a long head")
            return None
        request = parse_request(bytes(self._buffer[:end]))
        if not self._server.may(request):
            raise BadHead(401, "no token")
        if request.body_bytes > self._server.max_body_bytes:
            raise BadHead(413, "a long body")
        rest = end + len(END_OF_HEAD)
        taken = min(request.body_bytes, self._filled - rest)
        if request.body_bytes:
            self._body = bytearray(request.body_bytes)
            self._body[:taken] = self._buffer[rest : rest + taken]
            self._body_filled = taken
        left = self._filled - rest - taken
        self._buffer[:left] = self._buffer[rest + taken : self._filled]
        self._filled = left
        if request.expects_continue and taken < request.body_bytes:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return request

    def _answer(self, request: Request, body: bytearray) -> None:
        key = stripe_key(request.path)
        match request.method:
            case b"GET" if key is not None:
                self._get(key)
            case b"PUT" if key is not None:
                self._put(key, body)
            case b"GET" if request.path == b"/status":
                self._write(200, self._server.status())
            case _:
                self._server.refused_requests += 1
                self._write(404 if request.method in (b"GET", b"PUT") else 405)

    def _has_served(self, method: bytes) -> None:
        self._server.times[method].add(time.monotonic() - self._arrived)

    def _get(self, key: bytes) -> None:
        store = self._server.store
        framed = store.get_nowait(key)
        if framed is not None:
            self._write(200, framed)
            self._has_served(b"GET")
        elif store.is_in_file(key):
            self._is_reading_file = True
            self._transport.pause_reading()
            self._server.run(self._get_from_file(key))
        else:
            self._write(404)

    async def _get_from_file(self, key: bytes) -> None:
        framed = await self._server.store.get_from_file(key)
        self._is_reading_file = False
        if self._transport.is_closing():
            return
        self._write(404) if framed is None else self._write(200, framed)
        self._has_served(b"GET")
        self._resume()

    def _put(self, key: bytes, body: bytearray) -> None:
        try:
            parse(body, max_chunk_bytes=self._server.chunk_bytes)
            if not is_intact(body):
                raise BadStripe("damaged")
        except BadStripe:
            self._server.refused_requests += 1
            self._write(400)
            return
        self._server.store.put_nowait(key, body)
        self._write(204)
        self._has_served(b"PUT")

    def _write(self, status: int, body: bytes | bytearray = b"") -> None:
        """Straight to the socket, which takes a whole answer if the client has taken the last one."""
        parts = [answer_head(status, len(body)), body]
        sent = 0
        if self._transport.get_write_buffer_size() == 0:
            try:
                sent = os.writev(self._fd, parts)
            except BlockingIOError:
                pass
            except OSError:  # the client is gone; the transport will notice
                return
        if sent < len(parts[0]) + len(body):
            self._transport.write(b"".join(parts)[sent:])

    def _refuse(self, status: int) -> None:
        self._server.refused_requests += 1
        self._filled = 0
        self._transport.write(answer_head(status, 0, closes=True))
        self._transport.close()

    # ---- waiting

    @property
    def _is_busy(self) -> bool:
        return self._is_reading_file or self._is_full

    def _resume(self) -> None:
        if self._is_busy or self._transport.is_closing():
            return
        self._transport.resume_reading()
        self._proceed()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(STALL_S, self._check)

    def _check(self) -> None:
        is_under_way = self._is_busy or self._filled or self._request
        if time.monotonic() - self._since >= (STALL_S if is_under_way else IDLE_S):
            self._transport.abort()
            return
        self._arm()
