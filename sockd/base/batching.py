"""Calls of one kind that come while one is under way, made together when it has ended.

    POLICY: a call that finds none under way is made at once, alone. The slower the calls are, the more of them are one: a store
    that waits for its disk gets fewer and larger statements, and a call alone waits for no other.

Owns the calls that wait, and the task that makes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class _Call(NamedTuple, Generic[K, V]):
    item: K
    answered: asyncio.Future[V]


class Batching(Generic[K, V]):
    """For one event loop. `aclose` waits for the calls that were made."""

    def __init__(
        self,
        work: Callable[[Sequence[K]], Awaitable[Sequence[V]]],
        size_of: Callable[[K], int],
        *,
        most: int,
        most_size: int,
    ) -> None:
        """Args:
        work: makes calls together; returns their results, in order.
        most: calls that are made together; most_size: the sum of their sizes, of one call more if that is larger alone."""
        self._work = work
        self._size_of = size_of
        self._most = most
        self._most_size = most_size
        self._waiting: list[_Call[K, V]] = []
        self._making: asyncio.Task[None] | None = None

    async def do(self, item: K) -> V:
        """Return the result of a call. It is made also if its caller is cancelled. Raises: what `work` raises, to each caller."""
        call = _Call(item, asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if self._making is None:
            self._making = asyncio.ensure_future(self._make())
        result: V = await call.answered
        return result

    async def aclose(self) -> None:
        """Wait until all calls are made."""
        if self._making is not None:
            await asyncio.wait([self._making])

    async def _make(self) -> None:
        try:
            while calls := self._next():
                await self._answer(calls)
        finally:
            self._making = None

    def _next(self) -> list[_Call[K, V]]:
        """Take the calls that are made together now."""
        count, size = 0, 0
        for call in self._waiting[: self._most]:
            size += self._size_of(call.item)
            if count and size > self._most_size:
                break
            count += 1
        calls, self._waiting = self._waiting[:count], self._waiting[count:]
        return calls

    async def _answer(self, calls: Sequence[_Call[K, V]]) -> None:
        try:
            results = await self._work([call.item for call in calls])
        except Exception as error:
            for call in calls:
                if not call.answered.done():
                    call.answered.set_exception(error)
            return
        for call, result in zip(calls, results, strict=True):
            if not call.answered.done():
                call.answered.set_result(result)
