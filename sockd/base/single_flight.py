"""Single flight: the first of several callers starts a task, and all wait for it.

Owns the running tasks. Cancelling a waiter does not cancel the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from sockd.base.errors import Draining

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """At most one running task per key. Nothing is remembered: who asks after the end starts anew."""

    def __init__(self) -> None:
        self._running: dict[K, asyncio.Task[V]] = {}

    def __contains__(self, key: object) -> bool:
        """True while the work for this key runs."""
        return key in self._running

    def __len__(self) -> int:
        """How many tasks run."""
        return len(self._running)

    async def do(self, key: K, work: Callable[[], Awaitable[V]]) -> V:
        """The result of the running work for `key`, or of `work`, which is started if there is none.

        Raises: what the work raised, to each waiter; Draining when `aclose` stopped it."""
        task = self._running.get(key) or self._start(key, work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # Either this waiter was cancelled (the task runs on), or aclose() cancelled the task.
            waiter = asyncio.current_task()
            if task.cancelled() and not (waiter and waiter.cancelling()):
                raise Draining("the worker is shutting down") from None
            raise

    async def settled(self, key: K) -> None:
        """Returns when no work runs for this key, however it ended."""
        while task := self._running.get(key):
            await asyncio.wait([task])

    async def one_ended(self, within_s: float) -> None:
        """Returns when the work for any key has ended that runs now, or after this time."""
        if self._running:
            await asyncio.wait(list(self._running.values()), timeout=within_s, return_when=asyncio.FIRST_COMPLETED)

    async def aclose(self) -> None:
        """Cancels what runs and waits for it. Afterwards nothing runs; using it again is a bug."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _start(self, key: K, work: Callable[[], Awaitable[V]]) -> asyncio.Task[V]:
        async def run() -> V:
            return await work()

        task = asyncio.create_task(run(), name=f"single flight {key}")
        self._running[key] = task
        task.add_done_callback(lambda done: self._finished(key, done))
        return task

    def _finished(self, key: K, task: asyncio.Task[V]) -> None:
        del self._running[key]
        if not task.cancelled():
            # Read it here: if every waiter was cancelled, asyncio would report an exception that was never retrieved.
            task.exception()
