"""Live pages: streams of server-sent events with the changed parts of a board (HTML, Server-sent events).

Owns the timer of all streams, which runs once per second while there are viewers, and the number of viewers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from sockd.base.errors import NoSuchFunction, SockdError
from sockd.http.page.boards import Board

TICK_S = 1.0
"""The least time between two updates."""
HEARTBEAT_TICKS = 15
"""So often something is written, or a viewer that went away silently would never be missed."""
RETRY_MS = 2000
"""When a browser that has lost its stream asks again."""


class TooManyViewers(SockdError):
    """The page is served, but not updated."""

    status = 503
    error_type = "TooManyRequestsException"


class Live:
    """All streams of a worker."""

    def __init__(self, most: int, draining: Callable[[], bool]) -> None:
        """Args: most: viewers at once; draining: streams end when it says so."""
        self._most = most
        self._draining = draining
        self._tick: asyncio.Future[None] | None = None
        self.viewers = 0

    def watch(self, board: Board, seen: Sequence[str]) -> AsyncGenerator[bytes]:
        """The stream of one viewer: what differs from the digests in `seen`, then what changes. Raises: TooManyViewers."""
        if self.viewers >= self._most:
            raise TooManyViewers(f"{self.viewers} pages are kept up to date already (page.viewers); reload this one")
        return self._stream(board, set(seen))

    async def _stream(self, board: Board, seen: set[str]) -> AsyncGenerator[bytes]:
        self.viewers += 1
        board.viewers += 1
        try:
            yield b"retry: %d\n\n" % RETRY_MS
            shown: dict[str, str] = {}
            ticks = 0
            while not self._draining():
                fragments = await board.refresh()
                changed = b""
                for name, fragment in fragments.items():
                    known = {shown[name]} if name in shown else seen
                    if fragment.digest not in known:
                        changed += event(name, fragment.html)
                    shown[name] = fragment.digest
                ticks = 0 if changed else ticks + 1
                if changed or ticks % HEARTBEAT_TICKS == 0:
                    yield changed or b":\n\n"
                await self._next_tick()
        except NoSuchFunction:
            yield event("gone", "")  # it was removed while somebody looked at it
        finally:
            self.viewers -= 1
            board.viewers -= 1

    async def _next_tick(self) -> None:
        """Wait for the tick that all viewers share."""
        if self._tick is None or self._tick.done():
            loop = asyncio.get_running_loop()
            self._tick = tick = loop.create_future()
            loop.call_later(TICK_S, tick.set_result, None)
        await asyncio.shield(self._tick)


def event(name: str, html: str) -> bytes:
    """One event; each line of its data has a field of its own, and a carriage return would begin another line, too."""
    lines = "".join(f"data: {line}\n" for line in html.replace("\r", "\n").split("\n"))
    return f"event: {name}\n{lines}\n".encode()
