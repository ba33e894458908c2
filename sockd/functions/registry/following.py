"""Following a shared store: what another worker has changed of a function becomes what this worker reads and serves. So does what
other parts of sockd keep in the same database (`note_change`).

A notification has the worker look at once; besides, it looks every second, so that a lost notification delays a change, and loses
none. Owns the task, and the connection that it asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from sockd.base.config import PostgresConfig
from sockd.base.errors import DatabaseUnavailable, SockdError
from sockd.base.postgres.listener import Listener
from sockd.functions.registry.postgres_schema import CHANNEL
from sockd.functions.registry.postgres_store import REVISION
from sockd.functions.registry.registry import Registry

if TYPE_CHECKING:
    from sockd.base.postgres.database import Connection

POLL_S = 1.0
AT_ONCE = 8
"""Functions that are read at once; the first look after an outage may find thousands."""
CHANGED = """
SELECT name, revision FROM functions WHERE revision > $1
UNION ALL SELECT name, revision FROM function_removals WHERE revision > $1
UNION ALL SELECT name, revision FROM other_revisions WHERE revision > $1
ORDER BY revision
"""
NOTE = "INSERT INTO other_revisions VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET revision = excluded.revision"
OTHER = "/"
"""The first letter of what is no function."""

Reread = Callable[[], Awaitable[None]]
_log = logging.getLogger(__name__)


async def note_change(connection: Connection, name: str) -> None:
    """Have all workers read something again, after the transaction that changes it. Args: name: it begins with `OTHER`."""
    await connection.execute(NOTE, name, await connection.fetchval(REVISION))


class Following:
    """One worker's. `start`, then `aclose`, before the store is closed."""

    def __init__(self, registry: Registry, config: PostgresConfig, since: int) -> None:
        """Args: since: the last revision that the registry has."""
        self._registry = registry
        self._listener = Listener(config, CHANNEL)
        self.revision = since
        """The last revision that this worker serves."""
        self.looked_at = time.monotonic()
        """When the store answered last (time.monotonic)."""
        self._is_away = False
        self._others: dict[str, Reread] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self, collect: Callable[[], Awaitable[None]]) -> None:
        """Follow from now on. Args: collect: deletes what a change has left behind on this worker."""
        self._task = asyncio.create_task(self._run(collect), name="following the functions of the group")

    def also(self, name: str, reread: Reread) -> None:
        """Follow something else (`note_change`) too. Args: reread: reads all of it again. Raises: DatabaseUnavailable."""
        self._others[name] = reread

    async def aclose(self) -> None:
        """Follow no more. Safe to call twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._listener.close()

    async def _run(self, collect: Callable[[], Awaitable[None]]) -> None:
        while True:
            self._listener.heard.clear()
            try:
                if await self._look():
                    await collect()
            except DatabaseUnavailable as error:
                self._note_away(error.message)
            except (SockdError, OSError) as error:
                _log.warning("what other workers have removed is not deleted here now: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._listener.heard.wait()

    async def _look(self) -> bool:
        """Read what has changed since the last look; whether anything has. Raises: DatabaseUnavailable."""
        rows = await self._listener.fetch(CHANGED, self.revision)
        places = asyncio.Semaphore(AT_ONCE)

        async def refresh(name: str) -> None:
            async with places:
                await self._refresh(name)

        # A function may have two rows: it was removed, and is there again.
        names = {row["name"] for row in rows}
        results = await asyncio.gather(*map(refresh, names), return_exceptions=True)
        if failures := [result for result in results if result is not None]:
            raise failures[0]
        if rows:
            self.revision = rows[-1]["revision"]
        self.looked_at = time.monotonic()
        if self._is_away:
            self._is_away = False
            _log.info("the functions of the group can be read again")
        return bool(rows)

    async def _refresh(self, name: str) -> None:
        try:
            if not name.startswith(OTHER):
                await self._registry.refresh(name)
            elif (reread := self._others.get(name)) is not None:
                await reread()
        except DatabaseUnavailable:
            raise
        except Exception:  # such as a value that only a newer sockd understands: the others are followed all the same
            _log.exception("this worker does not serve what has changed of %s", name)

    def _note_away(self, words: str) -> None:
        if not self._is_away:
            self._is_away = True
            _log.warning("this worker serves the functions that it knows: %s", words)
