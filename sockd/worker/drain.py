"""The drain of a worker that ends: requests under way are answered, streams without an end are ended, the rest is cancelled.

Owns the timer of the log lines that say what the drain waits for. Knows nothing of why the worker ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Protocol

from sockd.http.wire.exchange import Exchange
from sockd.http.wire.server import HttpServer

FIRST_LINE_S = 1.0
"""How long a drain goes on before the log says what it waits for."""
NEXT_LINE_S = 5.0
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

    async def drained(self, deadline_s: float) -> None:
        """Wait until the admitted requests of functions have ended, until the deadline."""

    def under_way(self) -> Counter[str]:
        """Count the functions' requests that run or wait, by function."""


class Drain:
    """One end of a worker: `finish` ends its requests and its servers."""

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

    async def finish(self) -> None:
        """Refuse new requests, wait for those under way until the deadline, and close the servers."""
        self._draining.drain()
        await self._told(self._finish(self._loop.time() + self._drain_s))

    async def _finish(self, ends_s: float) -> None:
        await self._draining.drained(self._drain_s)
        rest_s = max(ends_s - self._loop.time(), ANSWER_S)
        await asyncio.gather(*(server.aclose(rest_s) for server in self._servers))

    async def _told(self, waiting: Awaitable[None]) -> None:
        """Wait, and have the log say for what."""
        self._line = self._loop.call_later(FIRST_LINE_S, self._tell)
        try:
            await waiting
        finally:
            self._line.cancel()

    def _tell(self) -> None:
        _log.info("draining for at most %g s; waiting for %s", self._drain_s, ", ".join(self._under_way()))
        self._line = self._loop.call_later(NEXT_LINE_S, self._tell)

    def _under_way(self) -> list[str]:
        """Name what the drain waits for: functions with their requests, requests to the management API, connections."""
        counts = Counter({f"requests of {name}": count for name, count in self._draining.under_way().items()})
        for server in self._management:
            counts.update(shown(exchange) for exchange in server.running)
        named = [f"{name} ({count})" for name, count in counts.most_common(MOST_NAMED)]
        if len(counts) > MOST_NAMED:
            named.append(f"{len(counts) - MOST_NAMED} others")
        return named or [f"connections ({sum(server.connections for server in self._servers)})"]


def shown(exchange: Exchange) -> str:
    """Return a request's method and path, as a log line has them."""
    path, _, _ = exchange.head.target.partition(b"?")
    return f"{exchange.head.method.decode()} {path[:MOST_PATH].decode('latin-1')}"
