"""One PostgreSQL database: a pool of connections, the schema number of its tables, and transactions whose errors are typed.

Owns the pool. asyncpg is imported when the first database is opened: who uses none does not need `sockd[postgres]`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from sockd.base.config import PostgresConfig
from sockd.base.errors import DatabaseUnavailable, SockdError, StorageFull
from sockd.base.extras import installing

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

    Connection = PoolConnectionProxy[asyncpg.Record]

ATTEMPTS = 3
"""How often a transaction is begun that lost a deadlock, or its connection."""
OLDEST_VERSION = 120000
"""PostgreSQL 12, as `server_version_num` writes it."""
T = TypeVar("T")

_log = logging.getLogger(__name__)


class BadDatabase(SockdError):
    """A PostgreSQL database cannot be used; the daemon does not start. The message says what to do."""


class Database:
    """An open database. `run` does work in a transaction."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record], config: PostgresConfig) -> None:
        self._pool = pool
        self._config = config

    @classmethod
    async def open(cls, config: PostgresConfig, *, part: str, migrations: tuple[str, ...]) -> Database:
        """Connect, and bring the tables of one part of sockd up to date.

        Args:
            part: names the tables; their schema number is kept under this name.
            migrations: SQL, of which the n-th leads to schema n + 1.
        Raises: BadDatabase, which says what to do."""
        database = cls(await _connected(config), config)
        try:
            await database.migrate(part, migrations)
        except BaseException:
            await database.aclose()
            raise
        return database

    async def migrate(self, part: str, migrations: tuple[str, ...]) -> None:
        """Bring the tables of another part of sockd up to date. Args: as `open`. Raises: BadDatabase, DatabaseUnavailable."""
        await self.run(lambda connection: _migrate(connection, part, migrations))

    async def run(self, work: Callable[[Connection], Awaitable[T]], *, begin: bool = True) -> T:
        """Return what `work` returns, once it is committed. It is called again, from the beginning, after a deadlock and after
        the loss of the connection, which may have taken the answer of a commit along.

        Args: begin: False: each statement of `work` is a transaction.
        Raises: StorageFull, DatabaseUnavailable."""
        import asyncpg

        again = (
            asyncpg.SerializationError,
            asyncpg.DeadlockDetectedError,
            asyncpg.PostgresConnectionError,
            asyncpg.AdminShutdownError,
            asyncpg.CannotConnectNowError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,  # of a connection that is lost while a statement is prepared
            ConnectionError,
        )
        ends, attempts = time.monotonic() + self._config.timeout_s, 0
        while True:
            attempts += 1
            try:
                return await self._once(work, begin=begin)
            except asyncpg.DiskFullError as error:
                raise StorageFull("free some of it", "the disk of PostgreSQL") from error
            except (asyncpg.PostgresError, *again, OSError, TimeoutError) as error:
                await self._pool.expire_connections()  # the others of a server that has gone are lost, too
                if attempts == ATTEMPTS or time.monotonic() >= ends or not isinstance(error, again):
                    raise unavailable(error) from error

    async def value(self, query: str, *parameters: object) -> Any:
        """Run one statement; return the first value of its first row, or None. Raises: as `run`."""
        return await self.run(lambda connection: connection.fetchval(query, *parameters), begin=False)

    async def _once(self, work: Callable[[Connection], Awaitable[T]], *, begin: bool) -> T:
        timeout_s = self._config.timeout_s
        connection = await self._pool.acquire(timeout=timeout_s)
        # A server that answers nothing would not answer a cancellation or a ROLLBACK either: the connection is cut off.
        overdue = asyncio.get_running_loop().call_later(timeout_s, connection.terminate)
        try:
            if not begin:
                return await work(connection)
            async with connection.transaction():
                return await work(connection)
        finally:
            overdue.cancel()
            await self._pool.release(connection, timeout=timeout_s)

    async def aclose(self) -> None:
        """End all connections; one whose server does not answer is cut off. Safe to call twice."""
        try:
            await asyncio.wait_for(self._pool.close(), self._config.timeout_s)
        except TimeoutError:
            self._pool.terminate()


def unavailable(error: BaseException) -> DatabaseUnavailable:
    """Return the error that callers get, for one of the driver."""
    words = str(error) or "it did not answer in time"
    return DatabaseUnavailable(f"PostgreSQL cannot be used now: {words}; try again")


async def _connected(config: PostgresConfig) -> asyncpg.Pool[asyncpg.Record]:
    try:
        import asyncpg
    except ImportError:
        raise BadDatabase(f"postgres.dsn needs asyncpg, which is not installed: {installing('postgres')}") from None
    try:
        pool = await asyncpg.create_pool(
            config.dsn,
            min_size=1,
            max_size=config.connections,
            timeout=config.timeout_s,
            reset=_keep,
            server_settings={"application_name": "sockd"},
        )
    except (ValueError, asyncpg.InterfaceError) as error:  # ClientConfigurationError is both
        raise BadDatabase(
            f"postgres.dsn is not a connection string ({error}): write postgresql://USER@HOST:PORT/DATABASE"
        ) from error
    except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError) as error:
        raise BadDatabase(
            f"PostgreSQL refuses the user of postgres.dsn ({error}): create the role, or give its password in a file named by "
            "?passfile="
        ) from error
    except asyncpg.InvalidCatalogNameError as error:
        raise BadDatabase(f"PostgreSQL has no such database ({error}): create it with createdb") from error
    except (asyncpg.PostgresError, OSError, TimeoutError) as error:
        words = str(error) or f"no answer within {config.timeout_s:g} s"
        raise BadDatabase(
            f"PostgreSQL cannot be reached ({words}): start it, or correct postgres.dsn, and start sockd again"
        ) from error
    return pool


async def _keep(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Have a connection that is given back stay as it is. The reset of asyncpg is a transaction more for each use, and nothing
    here changes a session: settings, locks and cursors end with their transaction."""


async def _migrate(connection: Connection, part: str, migrations: tuple[str, ...]) -> None:
    """Raises: BadDatabase."""
    version = connection.get_server_version()
    if version.major < OLDEST_VERSION // 10000:
        raise BadDatabase(
            f"postgres.dsn names PostgreSQL {version.major}; sockd needs {OLDEST_VERSION // 10000} or newer"
        )
    # Two workers that start at the same time: the second waits here, and finds the tables.
    await connection.execute("SELECT pg_advisory_xact_lock(hashtext('sockd schema'))")
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS sockd_schemas (part TEXT PRIMARY KEY, number INTEGER NOT NULL)"
    )
    found = await connection.fetchval("SELECT number FROM sockd_schemas WHERE part = $1", part) or 0
    if found > len(migrations):
        raise BadDatabase(
            f"the {part} in PostgreSQL were written by a newer sockd (schema {found}, this one knows {len(migrations)}): "
            "start that version, or name another database in postgres.dsn"
        )
    for migration in migrations[found:]:
        await connection.execute(migration)
    if found < len(migrations):
        await connection.execute(
            "INSERT INTO sockd_schemas VALUES ($1, $2) ON CONFLICT (part) DO UPDATE SET number = excluded.number",
            *(part, len(migrations)),
        )
        _log.info("the %s in PostgreSQL have schema %d now", part, len(migrations))


def excluded(names: str) -> str:
    """Return the columns of a row that an INSERT refused; a newer sockd may have added columns to the table.

    Args: names: separated by a comma and a blank."""
    return ", ".join(f"excluded.{name}" for name in names.split(", "))
