"""The drain of a worker that ends: requests under way are answered, streams without an end are ended, the rest is cancelled.

Owns the timer of the log lines that say what the drain waits for. Knows nothing of why the worker ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from sockd.http.server.exchange import Exchange
from sockd.http.server.server import IDLE_S, HttpServer

FIRST_LINE_S = 1.0
"""How long a drain goes on before the log says what it waits for."""
NEXT_LINE_S = 5.0
SHORT_S = 0.25
"""A request that takes longer is awaited before a worker leaves its sockets to the next one."""
ANSWER_S = 1.0
"""How long connections have for the rest of their answers after the drain's deadline."""
MOST_NAMED = 10
"""Functions and management requests that one log line names."""
MOST_PATH = 100
"""Bytes of a path that a log line has."""

_log = logging.getLogger(__name__)


class Draining(Protocol):
    """The worker's requests, as a drain sees them."""

    def drain(self) -> None:
        """Refuse new requests, and end streams that wait for something to come."""

    async def pause_events(self, deadline_s: float) -> None:
        """Begin no asynchronous invocation, and wait for those that run, until the deadline."""

    def resume_events(self) -> None:
        """Begin asynchronous invocations again."""

    async def drained(self, deadline_s: float) -> None:
        """Wait until the admitted requests of functions have ended, until the deadline."""

    def under_way(self) -> Counter[str]:
        """Count the functions' requests that run or wait, by function."""


class Drain:
    """One end of a worker: `finish`, or `serve_on` and then `leave` where another process has the same listening sockets."""

    def __init__(
        self, draining: Draining, servers: Sequence[HttpServer], management: Sequence[HttpServer], drain_s: float
    ) -> None:
        """Args: servers: all of the worker's; management: those of them that manage it; drain_s: how long requests under way
        may go on, in seconds."""
        self._draining = draining
        self._servers = servers
        self._management = management
        self._drain_s = drain_s
        self._loop = asyncio.get_running_loop()
        self._line: asyncio.TimerHandle | None = None

    async def serve_on(self, *interruptions: asyncio.Future[Any]) -> None:
        """Serve until no request that is under way takes long, until the deadline or an interruption.

        New requests are served as before, so that none waits for a long one, but each answer closes its connection: clients
        that keep theirs open come back on another one, and none of them is cut when the worker leaves."""
        for server in self._servers:
            server.retire()
        await self._logged(self._until_short(interruptions))

    async def _until_short(self, interruptions: Sequence[asyncio.Future[Any]]) -> None:
        """Wait for a second in which each request has ended within SHORT_S."""
        ends_s, quiet_s = self._loop.time() + self._drain_s, 0.0
        while quiet_s < IDLE_S and not any(each.done() for each in interruptions) and self._loop.time() < ends_s:
            ended = asyncio.ensure_future(self._ended())
            await asyncio.wait(interruptions, timeout=SHORT_S, return_when=asyncio.FIRST_COMPLETED)
            quiet_s += SHORT_S
            if not ended.done():
                quiet_s, left_s = 0.0, max(ends_s - self._loop.time(), 0.0)
                await asyncio.wait([ended, *interruptions], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                ended.cancel()

    async def _ended(self) -> None:
        """Wait until what runs now has ended."""
        events = self._draining.pause_events(self._drain_s)
        await asyncio.gather(events, *(server.running_ended() for server in self._servers))

    def stay(self) -> None:
        """Take `serve_on` back: no worker takes over."""
        for server in self._servers:
            server.retire(False)
        self._draining.resume_events()

    async def leave(self) -> None:
        """Accept no connection any more, serve the open ones to the end of their answers, and `finish`."""
        ends_s = self._loop.time() + self._drain_s
        await self._logged(self._leave(ends_s))
        await self.finish()

    async def _leave(self, ends_s: float) -> None:
        await asyncio.gather(*(server.leave(ends_s) for server in self._servers))

    async def finish(self) -> None:
        """Refuse new requests, wait for those under way until the deadline, and close the servers."""
        self._draining.drain()
        await self._logged(self._finish(self._loop.time() + self._drain_s))

    async def _finish(self, ends_s: float) -> None:
        await self._draining.drained(self._drain_s)
        rest_s = max(ends_s - self._loop.time(), ANSWER_S)
        await asyncio.gather(*(server.aclose(rest_s) for server in self._servers))

    async def _logged(self, waiting: Awaitable[None]) -> None:
        """Wait, and have the log say for what."""
        self._line = self._loop.call_later(FIRST_LINE_S, self._tell)
        try:
            await waiting
        finally:
            self._line.cancel()

    def _tell(self) -> None:
        if under_way := self._under_way():
            _log.info("draining for at most %g s; waiting for %s", self._drain_s, ", ".join(under_way))
        self._line = self._loop.call_later(NEXT_LINE_S, self._tell)

    def _under_way(self) -> list[str]:
        """Name what the drain waits for: functions with their requests, requests to the management API, else connections."""
        counts = Counter({f"requests of {name}": count for name, count in self._draining.under_way().items()})
        for server in self._management:
            counts.update(shown(exchange) for exchange in server.running)
        named = [f"{name} ({count})" for name, count in counts.most_common(MOST_NAMED)]
        if len(counts) > MOST_NAMED:
            named.append(f"{len(counts) - MOST_NAMED} others")
        connections = sum(server.connections for server in self._servers)
        return named or ([f"connections ({connections})"] if connections else [])


def shown(exchange: Exchange) -> str:
    """Return a request's method and path, as a log line has them."""
    path, _, _ = exchange.head.target.partition(b"?")
    return f"{exchange.head.method.decode()} {path[:MOST_PATH].decode('latin-1')}"
