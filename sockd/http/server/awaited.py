"""A set of exchanges, of which somebody waits for some: those that run when a server is about to leave.

It takes the place of the server's own set for that time, so that no other request pays for it. Owns nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from sockd.http.server.exchange import Exchange


class AwaitedExchanges(set[Exchange]):
    """The exchanges that run."""

    def __init__(self, running: Iterable[Exchange]) -> None:
        """Wait for those of them whose answer has an end."""
        super().__init__(running)
        self._awaited: set[object] = {exchange for exchange in self if not exchange.endless}
        self._none_left = asyncio.Event()
        if not self._awaited:
            self._none_left.set()

    def discard(self, exchange: object) -> None:
        """As of every set; the waiter goes on behind the last one."""
        super().discard(exchange)
        self._awaited.discard(exchange)
        if not self._awaited:
            self._none_left.set()

    async def ended(self) -> None:
        """Wait until those that ran at first have ended."""
        await self._none_left.wait()
