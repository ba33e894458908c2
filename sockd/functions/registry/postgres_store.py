"""Functions in a PostgreSQL database that several workers share (`postgres_schema` has the tables), changed by compare-and-set.

Owns the database's pool. A change is one transaction, which names its writer: where the answer of a commit was lost, the change
is found to be made already. Environments are sealed (`secrets`) by a key that all workers have.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sockd.base.config import PostgresConfig
from sockd.base.errors import SockdError
from sockd.base.postgres.database import Database, excluded
from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.function_store import Conflict
from sockd.functions.registry.postgres_schema import HEAD_SCHEMA, MIGRATIONS
from sockd.functions.registry.registry_schema import decoded, encoded
from sockd.functions.registry.secrets import PREFIX, Vault

if TYPE_CHECKING:
    from sockd.base.postgres.database import Connection, excluded

Hold = Callable[["Connection", Sequence[FunctionRecord]], Awaitable[None]]
"""Keeps what deploys need, in the transaction that stores them. It raises if that is not there."""


FIELDS = [field.name for field in fields(FunctionRecord)]
NAMES = ", ".join(FIELDS)
HEADS = "SELECT name, revision, value FROM functions WHERE $1 IN (name, '') ORDER BY name"
DEPLOYS = f"SELECT {NAMES} FROM deploys WHERE $1 IN (name, '') ORDER BY name, version"
REVISION = "UPDATE function_revisions SET last = last + 1 RETURNING last"
HEAD = "SELECT revision, schema, writer FROM functions WHERE name = $1"
HEAD_NAMES = "name, revision, schema, writer, value"
PUT_HEAD = f"""
INSERT INTO functions ({HEAD_NAMES}) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (name) DO UPDATE SET ({HEAD_NAMES}) = ({excluded(HEAD_NAMES)})
"""
PUT_DEPLOY = f"""
INSERT INTO deploys ({NAMES}) VALUES ({", ".join(f"${number}" for number in range(1, len(FIELDS) + 1))})
ON CONFLICT (name, version) DO UPDATE SET ({NAMES}) = ({excluded(NAMES)})
"""
FORGET_DEPLOYS = "DELETE FROM deploys WHERE name = $1 AND version = ANY($2::integer[])"
REMOVED = """
INSERT INTO function_removals VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET revision = excluded.revision
"""
HAS_SEALED = "SELECT EXISTS (SELECT FROM deploys WHERE config LIKE '%\"sealed\":\"' || $1 || '%')"


async def hold_nothing(connection: Connection, deploys: Sequence[FunctionRecord]) -> None:
    """Store deploys whose files are kept elsewhere."""


class WrittenByNewer(SockdError):
    """A newer sockd has written the function, and this one would lose what it does not know; nothing was stored."""

    status = 409
    error_type = "ResourceConflictException"

    def __init__(self, name: str) -> None:
        super().__init__(f"function {name!r} was changed by a newer sockd; change it on a worker that has that version")


class PostgresStore:
    """A `FunctionStore`."""

    def __init__(self, database: Database, vault: Vault, hold: Hold) -> None:
        """Args: as `open`; database: owned from now on."""
        self.database = database
        self._vault = vault
        self._hold = hold

    @classmethod
    async def open(cls, config: PostgresConfig, vault: Vault, hold: Hold = hold_nothing) -> PostgresStore:
        """Connect, and bring the tables up to date.

        Args:
            vault: what seals environments. If it has no key it is given one, but not while something is sealed.
            hold: called with the deploys of each change.
        Raises: BadDatabase, DatabaseUnavailable; BadConfig, of the key."""
        database = await Database.open(config, part="functions", migrations=MIGRATIONS)
        try:
            if not vault.has_key and not await database.value(HAS_SEALED, PREFIX):
                vault.make_key()
        except BaseException:
            await database.aclose()
            raise
        return cls(database, vault, hold)

    @property
    def key_path(self) -> Path:
        return self._vault.path

    async def aclose(self) -> None:
        await self.database.aclose()

    async def read(self) -> Sequence[FunctionAggregate]:
        return await self._read("")

    async def get(self, name: str) -> FunctionAggregate:
        return next(iter(await self._read(name)), FunctionAggregate(name))

    async def put(self, new: FunctionAggregate, *, expected: FunctionAggregate) -> FunctionAggregate:
        before = {record.version: record for record in expected.deploys}
        changed = [each for each in new.deploys if before.get(each.version) != each]
        forgotten = before.keys() - {record.version for record in new.deploys}
        rows, value, writer = [self._row(each) for each in changed], encoded(new), uuid.uuid4().bytes

        async def put(connection: Connection) -> int:
            revision: int = await connection.fetchval(REVISION)
            head = await connection.fetchrow(HEAD, new.name)
            if head is not None and head["writer"] == writer:  # the answer of the commit was lost
                return int(head["revision"])
            _expect(expected, head["revision"] if head else 0, head["schema"] if head else 0)
            await self._hold(connection, changed)
            await connection.execute(PUT_HEAD, new.name, revision, HEAD_SCHEMA, writer, value)
            await connection.executemany(PUT_DEPLOY, rows)
            if head is None:
                await connection.execute("DELETE FROM function_removals WHERE name = $1", new.name)
            await connection.execute(FORGET_DEPLOYS, new.name, list(forgotten))
            return revision

        return replace(new, revision=await self.database.run(put))

    async def remove(self, expected: FunctionAggregate) -> None:
        is_again = False

        async def remove(connection: Connection) -> None:
            nonlocal is_again
            revision = await connection.fetchval(REVISION)
            head = await connection.fetchrow(HEAD, expected.name)
            if head is None and is_again:
                return
            is_again = True
            _expect(expected, head["revision"] if head else 0, head["schema"] if head else 0)
            await connection.execute("DELETE FROM functions WHERE name = $1", expected.name)
            await connection.execute(REMOVED, expected.name, revision)

        await self.database.run(remove)

    async def _read(self, name: str) -> list[FunctionAggregate]:
        """Args: name: of one function; empty: all."""

        async def read(connection: Connection) -> tuple[list[tuple[str, int, str]], list[FunctionRecord]]:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                heads = [tuple(row) for row in await connection.fetch(HEADS, name)]
                return heads, [FunctionRecord(*row) for row in await connection.fetch(DEPLOYS, name)]

        heads, records = await self.database.run(read, begin=False)
        deploys = defaultdict(list)
        for record in records:
            deploys[record.name].append(replace(record, config=self._vault.open(record.name, record.config)))
        return [
            replace(decoded(value), revision=revision, deploys=tuple(deploys[key])) for key, revision, value in heads
        ]

    def _row(self, record: FunctionRecord) -> tuple[object, ...]:
        return astuple(replace(record, config=self._vault.seal(record.name, record.config)))


def _expect(expected: FunctionAggregate, revision: int, schema: int) -> None:
    """Raises: Conflict, WrittenByNewer."""
    if revision != expected.revision:
        raise Conflict(expected.name)
    if schema > HEAD_SCHEMA:
        raise WrittenByNewer(expected.name)
