"""A connection of its own to a PostgreSQL database, which hears of notifications and is opened again after it was lost.

Owns the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sockd.base.config import PostgresConfig
from sockd.base.postgres.database import unavailable

if TYPE_CHECKING:
    import asyncpg


class Listener:
    """Listens on one channel. For one event loop; one `fetch` at a time."""

    def __init__(self, config: PostgresConfig, channel: str) -> None:
        self._config = config
        self._channel = channel
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self.heard = asyncio.Event()
        """Set by each notification of another connection. The reader clears it before a look."""

    async def fetch(self, query: str, *parameters: object) -> Sequence[asyncpg.Record]:
        """Run one query on the connection, so that one that is lost is noticed. It listens before the query begins.

        Raises: DatabaseUnavailable."""
        import asyncpg

        try:
            if self._connection is None:
                self._connection = await self._opened()
            return await self._connection.fetch(query, *parameters, timeout=self._config.timeout_s)
        except (
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
            OSError,
            TimeoutError,
        ) as error:
            self.close()
            raise unavailable(error) from error

    def close(self) -> None:
        """End the connection; the next `fetch` opens another."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def _opened(self) -> asyncpg.Connection[asyncpg.Record]:
        import asyncpg

        settings = {"application_name": "sockd follower"}
        timeout_s = self._config.timeout_s
        connection = await asyncpg.connect(self._config.dsn, timeout=timeout_s, server_settings=settings)
        mine = connection.get_server_pid()

        def hear(_: object, pid: int, *__: object) -> None:
            if pid != mine:
                self.heard.set()

        try:
            async with asyncio.timeout(timeout_s):
                await connection.add_listener(self._channel, hear)
        except BaseException:
            connection.terminate()
            raise
        return connection
