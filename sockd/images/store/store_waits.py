"""What starts wait for at the chunk store: its answer, as long as something comes from it.

POLICY: a start waits while the store sends something, and `stall_s` longer. What was asked then goes on without it, and until
that has ended, no other start asks: a silent store costs the first start `stall_s`, and no thread for each of the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sockd.base.errors import StoreUnavailable
from sockd.images.chunks.store import ChunkStore

T = TypeVar("T")


class StoreWaits:
    """The requests to one store that their callers no longer wait for. Owns these requests until they have ended."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._late: set[asyncio.Task[None]] = set()
        self._silent = 0
        """How many of these were given up because the store is silent."""

    async def answer(
        self, store: ChunkStore, ask: Callable[[], Awaitable[T]], discard: Callable[[T], None] = lambda result: None
    ) -> T:
        """What `ask` returns or raises. Args: discard: is given a result that comes after its start has gone on, or has ended.

        Raises: StoreUnavailable: nothing has come for `stall_s`."""
        if self._silent:
            raise self._silence(store)
        begun_s, asked = time.monotonic(), asyncio.ensure_future(ask())
        try:
            while not asked.done():
                left_s = max(begun_s, store.heard_s) + self._stall_s - time.monotonic()
                if left_s <= 0:
                    raise self._silence(store)
                await asyncio.wait([asked], timeout=left_s)
        except BaseException as error:
            late = asyncio.ensure_future(self._discarded(asked, discard, is_silent=isinstance(error, StoreUnavailable)))
            self._late.add(late)
            late.add_done_callback(self._late.discard)
            raise
        return asked.result()

    async def aclose(self) -> None:
        """Wait until nothing is under way; the store was closed, so that it ends."""
        await asyncio.gather(*self._late, return_exceptions=True)

    async def _discarded(self, asked: asyncio.Future[T], discard: Callable[[T], None], *, is_silent: bool) -> None:
        self._silent += is_silent
        await asyncio.wait([asked])
        self._silent -= is_silent
        if not asked.cancelled() and asked.exception() is None:
            discard(asked.result())

    def _silence(self, store: ChunkStore) -> StoreUnavailable:
        return StoreUnavailable(store.name, f"it has sent nothing for {self._stall_s:g} s (images.stall_s)")
