"""The memory budget of sandboxes and Zygotes, divided into reservations.

Owns a number. A reservation is admission control on limits, not on use; a paused sandbox shrinks its reservation to what
it uses (OpenLambda does the same), so a worker holds many more idle sandboxes than running ones.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Protocol

from sockd.base.errors import NoCapacity


class Reservation:
    """Bytes taken from a budget. `close` gives them back; safe to call twice."""

    def __init__(self, budget: MemoryBudget, size: int) -> None:
        self._budget = budget
        self.size = size

    def resize_nowait(self, size: int) -> bool:
        """Grow or shrink; False (and unchanged) when the budget has not got the difference."""
        if size > self.size and size - self.size > self._budget.free:
            return False
        self._budget.used += size - self.size
        self.size = size
        self._budget.wake()
        return True

    async def grow(self, size: int, *, deadline_s: float) -> None:
        """Grow, waiting for memory to come free as `MemoryBudget.reserve` does. Raises: NoCapacity; unchanged then."""
        more = await self._budget.reserve(size - self.size, deadline_s=deadline_s)
        self.size += more.size
        more.size = 0

    def close(self) -> None:
        self.resize_nowait(0)


class Holder(Protocol):
    """Holds memory that can be had back, as idle sandboxes do."""

    def make_room(self, need_bytes: int) -> object:
        """Give back so much that `need_bytes` are free, or all that can be spared."""


class MemoryBudget:
    """`total` bytes. Fair: waiters are served in order, and as many at once as fit.

    When a request does not fit, each of `holders` is asked to make room for so many bytes, in their order, before it waits."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self.holders: list[Holder] = []
        self.waiters: deque[tuple[int, asyncio.Future[Reservation]]] = deque()

    @property
    def free(self) -> int:
        return self.total - self.used

    @property
    def contended(self) -> bool:
        """Somebody waits for memory."""
        return bool(self.waiters)

    def reserve_nowait(self, size: int) -> Reservation | None:
        """A reservation at once, or None. Never overtakes a waiter."""
        if self.waiters or size > self.free:
            return None
        self.used += size
        return Reservation(self, size)

    async def reserve(self, size: int, *, deadline_s: float) -> Reservation:
        """A reservation, waiting for memory to come free.

        Raises: NoCapacity when the size can never fit or none came free before the deadline."""
        if size > self.total:
            raise NoCapacity(
                f"the function needs {size >> 20} MB and the worker has {self.total >> 20} MB for sandboxes"
            )
        if (reservation := self.reserve_nowait(size)) is not None:
            return reservation
        for holder in self.holders:
            holder.make_room(size)
        if (reservation := self.reserve_nowait(size)) is not None:
            return reservation
        future: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        self.waiters.append((size, future))
        try:
            async with asyncio.timeout(deadline_s):
                return await future
        except BaseException as error:
            if future.done() and not future.cancelled():
                future.result().close()  # it was served and cancelled in the same turn of the loop
            future.cancel()
            self.wake()
            if isinstance(error, TimeoutError):
                message = f"no {size >> 20} MB of memory came free in {deadline_s:g} s; every sandbox is busy"
                raise NoCapacity(message) from None
            raise

    def wake(self) -> None:
        """Serve the waiters that fit now, in order."""
        while self.waiters and (self.waiters[0][1].done() or self.waiters[0][0] <= self.free):
            size, future = self.waiters.popleft()
            if not future.done():
                self.used += size
                future.set_result(Reservation(self, size))


def host_memory_bytes() -> int:
    """Physical memory of this host."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
