"""The rows of blobs in PostgreSQL, which own the bytes in the chunk store (`postgres_schema` has the table).

    reserve ──► bytes are written ──► complete          a row of a new generation, before its first byte
    hold      in the transaction that stores a deploy: what it needs is there, and is not collected before the commit
    collect   rows that no deploy needs and no worker has used for a while; then their bytes

A generation is used once, so that bytes whose generation has no row are garbage whenever they are found: their writer was
killed, or was slower than `collect`. Owns nothing: the store of functions has the database.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sockd.base.errors import NoCapacity
from sockd.base.postgres.database import BadDatabase, Database
from sockd.functions.blobs.blob_names import needed
from sockd.functions.registry.function_record import FunctionRecord

if TYPE_CHECKING:
    from sockd.base.postgres.database import Connection

GROUP = "SELECT name, space FROM function_group"
NEW_GROUP = "INSERT INTO function_group (name, space) VALUES ($1, $2)"
USE = "UPDATE blobs SET used_at = now() WHERE name = $1 AND is_whole RETURNING generation, parts"
HOLD = "UPDATE blobs SET used_at = now() WHERE name = ANY($1::text[]) AND is_whole RETURNING name"
FIND = "SELECT generation, parts FROM blobs WHERE name = $1 AND is_whole LIMIT 1"
RESERVE = "INSERT INTO blobs (name, generation, parts) VALUES ($1, $2, 0) ON CONFLICT DO NOTHING"
"""The answer of the first attempt may be lost."""
COMPLETE = (
    "UPDATE blobs SET is_whole = true, parts = $3, used_at = now() WHERE name = $1 AND generation = $2 RETURNING true"
)
FORGET = "DELETE FROM blobs WHERE generation = $1"
NEEDLESS = """(NOT is_whole OR (
    name NOT IN (SELECT 'code/' || digest FROM deploys)
    AND name NOT IN (SELECT 'initscript/' || initscript FROM deploys)
    AND name NOT IN (SELECT 'image/' || image FROM deploys)
    AND NOT (blobs.name LIKE 'wheel/%' AND EXISTS (SELECT FROM deploys WHERE strpos(closure, substr(blobs.name, 7)) > 0))
))"""
LOCK = f"""
SELECT generation FROM blobs WHERE used_at < now() - make_interval(secs => $1) AND {NEEDLESS} FOR UPDATE SKIP LOCKED
"""
COLLECT = f"DELETE FROM blobs WHERE generation = ANY($1::text[]) AND {NEEDLESS} RETURNING generation"
DUE = """
UPDATE function_group SET collected_at = now() WHERE collected_at < now() - make_interval(secs => $1) RETURNING true
"""
KNOWN = "SELECT generation FROM blobs WHERE generation = ANY($1::text[])"


class Stored(NamedTuple):
    """Where the bytes of a blob are."""

    generation: str
    parts: int


class FilesGone(NoCapacity):
    """A file that a deploy needs was collected before the deploy was recorded; nothing was recorded."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(f"the deploy took so long that its files are not kept any more ({len(names)}); deploy again")


async def hold(connection: Connection, deploys: Sequence[FunctionRecord]) -> None:
    """Keep what deploys need. A collection at the same time waits for this transaction. Raises: FilesGone."""
    names = {name for record in deploys for name in needed(record)}
    held = {row["name"] for row in await connection.fetch(HOLD, sorted(names))}
    if gone := names - held:
        raise FilesGone(gone)


class BlobTable:
    """The rows of one group. Each call may raise DatabaseUnavailable."""

    def __init__(self, database: Database, space: str) -> None:
        self._database = database
        self.space = space

    @classmethod
    async def open(cls, database: Database, group: str) -> BlobTable:
        """The rows of a group, which the first worker names. Raises: BadDatabase, if the functions are another group's."""

        async def space(connection: Connection) -> str:
            await connection.execute("LOCK TABLE function_group IN EXCLUSIVE MODE")
            row = await connection.fetchrow(GROUP)
            if row is None:
                new = secrets.token_hex(8)
                await connection.execute(NEW_GROUP, group, new)
                return new
            if row["name"] != group:
                raise BadDatabase(
                    f"the functions in PostgreSQL are those of the group {row['name']!r}: set group.name to it, or name "
                    "another database in postgres.dsn"
                )
            return str(row["space"])

        return cls(database, await database.run(space))

    async def use(self, name: str) -> Stored | None:
        """As `find`; the blob is kept for a while from now on."""
        return await self._stored(USE, name)

    async def find(self, name: str) -> Stored | None:
        """Return where the bytes of a blob are; None: there is no such blob."""
        return await self._stored(FIND, name)

    async def reserve(self, name: str) -> str:
        """Return a new generation, whose bytes may be written."""
        generation = secrets.token_hex(16)
        await self._database.value(RESERVE, name, generation)
        return generation

    async def complete(self, name: str, generation: str, parts: int) -> bool:
        """Make a blob of what was written. False: it was collected before."""
        return bool(await self._database.value(COMPLETE, name, generation, parts))

    async def forget(self, generation: str) -> None:
        """Delete a row whose bytes are lost."""
        await self._database.value(FORGET, generation)

    async def is_due(self, every_s: float) -> bool:
        """Whether no worker has begun a collection for so many seconds. One worker gets True, and collects."""
        return bool(await self._database.value(DUE, every_s))

    async def collect(self, unused_s: float) -> list[str]:
        """Delete the rows that no deploy needs. Returns: their generations, whose bytes are garbage.

        Args: unused_s: for so many seconds no worker has used them."""

        async def collect(connection: Connection) -> list[str]:
            locked = [row["generation"] for row in await connection.fetch(LOCK, unused_s)]
            # This statement sees the deploys that have held a row before it was locked.
            return [row["generation"] for row in await connection.fetch(COLLECT, locked)]

        return await self._database.run(collect)

    async def unknown(self, generations: Sequence[str]) -> set[str]:
        """Return those without a row."""
        rows = await self._database.run(lambda connection: connection.fetch(KNOWN, generations), begin=False)
        return set(generations) - {row["generation"] for row in rows}

    async def _stored(self, query: str, name: str) -> Stored | None:
        row = await self._database.run(lambda connection: connection.fetchrow(query, name), begin=False)
        return None if row is None else Stored(*row)
