"""The thread in which a store is used: what waits together is committed together.

Owns the thread and the store. The event loop never waits for the disk, and a commit that does wait for it (synchronous
= full) is shared by all who came meanwhile. Work that fails undoes itself alone; a commit that fails, everything in it.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, cast

from sockd.base.errors import StorageFull

MOST_AT_ONCE = 256
"""The most calls of one transaction."""


class Store(Protocol):
    """A store that commits nothing itself."""

    database: sqlite3.Connection

    def close(self) -> None: ...

    def tidy(self) -> bool:
        """One short step of what can wait until nothing else is to be done. Returns whether there are more."""


S = TypeVar("S", bound=Store)
T = TypeVar("T")
_log = logging.getLogger(__name__)
Work = tuple[Callable[[Any], Any], "asyncio.Future[Any]"]
Result = tuple["asyncio.Future[Any]", Any, BaseException | None]


class StoreThread(Generic[S]):
    """`run` gives it work; `aclose` ends it when all work is done."""

    def __init__(self, store: S, name: str) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[S], T]) -> T:
        """What `work` returns, when it is committed; what it raises, when it is undone. It may be called again after the
        latter. A cancelled caller stops waiting; the work is done all the same.

        Raises: StorageFull; sqlite3.Error."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._queue.put((work, future))
        return cast(T, await future)

    async def aclose(self) -> None:
        """Do what is left, and close the store. Safe to call twice."""
        if self._thread.is_alive():
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _main(self) -> None:
        going = True
        while going:
            self._tidy_while_idle()
            going = self._turn()
        self._store.close()

    def _turn(self) -> bool:
        """One transaction. Returns whether there is to be another one. What it was about is let go of when it is over: it
        may be megabytes, and the next one may be hours away."""
        batch = [self._queue.get()]
        while len(batch) < MOST_AT_ONCE:
            try:
                batch.append(self._queue.get_nowait())
            except queue.Empty:
                break
        results = self._transact([work for work in batch if work is not None])
        self._loop.call_soon_threadsafe(_resolve, results)
        return None not in batch

    def _tidy_while_idle(self) -> None:
        try:
            while self._queue.empty() and self._store.tidy():
                continue
        except sqlite3.Error as error:  # a full disk, most likely: what is to be written next will tell
            _log.warning("the store cannot be made smaller: %s", error)

    def _transact(self, batch: list[Work]) -> list[Result]:
        run = self._store.database.execute
        results: list[Result] = []
        try:
            run("BEGIN IMMEDIATE")
            for work, future in batch:
                results.append((future, *self._one(work)))
            run("COMMIT")
        except Exception as error:
            if self._store.database.in_transaction:  # SQLite itself rolls back when the disk is full
                run("ROLLBACK")
            results = [(future, None, _typed(error)) for _, future in batch]
        return results

    def _one(self, work: Callable[[S], Any]) -> tuple[Any, BaseException | None]:
        """Raises: sqlite3.Error, when the whole transaction is gone."""
        run = self._store.database.execute
        run("SAVEPOINT work")
        try:
            result = work(self._store)
        except Exception as error:
            if not self._store.database.in_transaction:
                raise
            run("ROLLBACK TO work")
            run("RELEASE work")
            return None, _typed(error)
        run("RELEASE work")
        return result, None


def _typed(error: BaseException) -> BaseException:
    if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return StorageFull()
    return error


def _resolve(results: list[Result]) -> None:
    for future, result, error in results:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
