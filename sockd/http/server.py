"""The HTTP server: uvicorn's protocol on our sockets, in our loop.

uvicorn.Server itself is not used. It takes the process's signals, wakes up ten times a second all its life and polls
its connections in the end; the daemon owns its signals and waits for events. What is left of that class is here:
listeners, the Date header, and the drain.

Owns its sockets, from construction on, and the connections accepted from them. The file of a Unix socket stays: clients
are refused just as clearly, and the next owner replaces it (`bind_unix`), as it must after a crash.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from email.utils import formatdate
from typing import Any

from uvicorn.config import Config

from sockd.http.connection import Connection, ConnectionLimits, Connections

BACKLOG = 2048


class HttpServer:
    """One ASGI application on one or more bound sockets."""

    def __init__(
        self,
        app: Any,
        sockets: Sequence[socket.socket],
        *,
        limits: ConnectionLimits | None = None,
        keep_alive_s: int = 75,
    ) -> None:
        """Args: sockets: bound, not listening (`sockd.http.sockets`)."""
        self._sockets = list(sockets)
        self.addresses = [sock.getsockname() for sock in sockets]
        self._config = Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=keep_alive_s,
        )
        self._limits = limits or ConnectionLimits()
        self._servers: list[asyncio.AbstractServer] = []
        self._date_timer: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The bound TCP port (of the first socket)."""
        port: int = self.addresses[0][1]
        return port

    @property
    def connections(self) -> int:
        """Open connections now."""
        return len(self._state.connections)

    @property
    def refused(self) -> dict[str, int]:
        """Requests refused before the application saw them, by error type."""
        return dict(self._state.refused)

    async def start(self) -> None:
        """Listen; on return the kernel accepts connections."""
        loop = asyncio.get_running_loop()
        self._config.load()
        self._state = Connections(self._limits)
        self._tick()
        for sock in self._sockets:
            create = loop.create_unix_server if sock.family == socket.AF_UNIX else loop.create_server
            self._servers.append(await create(self._accepted, sock=sock, backlog=BACKLOG))

    def _accepted(self) -> Connection:
        return Connection(self._config, self._state, asyncio.get_running_loop())

    def _tick(self) -> None:
        """An origin server with a clock must send Date (RFC 9110, 6.6.1); once a second is its resolution."""
        now = time.time()
        self._state.default_headers = [(b"date", formatdate(now, usegmt=True).encode())]
        self._date_timer = asyncio.get_running_loop().call_later(1.0 - now % 1.0, self._tick)

    async def aclose(self, drain_s: float) -> None:
        """Stop accepting, close idle connections, let requests finish for `drain_s`, then cancel what is left.

        Idempotent. Cancelled requests are answered by the application if it wants to."""
        for server in self._servers:
            server.close()
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        if not self._servers:
            return
        self._servers.clear()
        state = self._state
        state.closing = True
        for connection in list(state.connections):
            connection.shutdown()
        await self._drained(drain_s)
        for task in list(state.tasks):
            task.cancel()
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=1.0)
        for connection in list(state.connections):
            connection.transport.abort()
        await self._drained(1.0)
        if self._date_timer is not None:
            self._date_timer.cancel()

    async def _drained(self, timeout_s: float) -> None:
        self._state.none_left.clear()
        if self._state.connections:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._state.none_left.wait(), timeout_s)
