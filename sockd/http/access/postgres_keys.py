"""The keys of a group of workers, in their PostgreSQL database (`sockd.http.postgres_schema` has the table).

A key that is made or revoked on one worker is read again by all of them, as functions are. Owns nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sockd.base.errors import BadRequest
from sockd.base.postgres.database import Database
from sockd.functions.registry.following import Following, note_change
from sockd.http.access.keys import Key, Keys, put_aside, read_keys

if TYPE_CHECKING:
    from sockd.base.postgres.database import Connection

CHANGED = "/keys"
"""What followers read again after a change."""
JOINED = "keys.joined.json"
ADD = "INSERT INTO client_keys (id, name, value) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
IS_STORED = "SELECT EXISTS (SELECT FROM client_keys WHERE id = $1 AND value = $2)"

_log = logging.getLogger(__name__)


class PostgresKeys:
    """A `KeyStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self) -> list[Key]:
        """Return all keys that this version understands. Raises: DatabaseUnavailable."""
        rows = await self._database.run(
            lambda connection: connection.fetch("SELECT name, value FROM client_keys"), begin=False
        )
        keys = []
        for name, value in rows:
            try:
                keys.append(msgspec.json.decode(value, type=Key))
            except msgspec.DecodeError as error:
                _log.warning("the key %r was made by a newer sockd, and is refused here: %s", name, error)
        return keys

    async def add(self, key: Key, all_keys: Sequence[Key]) -> None:
        value = msgspec.json.encode(key).decode()

        async def add(connection: Connection) -> bool:
            await connection.execute(ADD, key.id, key.name, value)
            await note_change(connection, CHANGED)
            is_stored: bool = await connection.fetchval(IS_STORED, key.id, value)
            return is_stored

        if not await self._database.run(add):
            raise BadRequest(f"there is a key {key.name!r} already: sockd keys rm {key.name}")

    async def remove(self, key: Key, all_keys: Sequence[Key]) -> None:
        async def remove(connection: Connection) -> None:
            await connection.execute("DELETE FROM client_keys WHERE id = $1", key.id)
            await note_change(connection, CHANGED)

        await self._database.run(remove)


async def open_keys(database: Database, following: Following, path: Path) -> Keys:
    """Return the keys of a group, which follow the database; bring those of a keys.json along that the worker had alone.

    Raises: BadConfig, DatabaseUnavailable; OSError."""
    store = PostgresKeys(database)
    if (own := read_keys(path)) is not None:
        for key in own:
            await _bring_along(store, key)
        put_aside(path, JOINED)
    keys = Keys(store)

    async def reread() -> None:
        keys.replace(await store.read())

    following.also(CHANGED, reread)
    await reread()
    return keys


async def _bring_along(store: PostgresKeys, key: Key) -> None:
    try:
        await store.add(key, ())
    except BadRequest:
        _log.warning("the group has a key %r already: this worker's own of that name is in %s", key.name, JOINED)
