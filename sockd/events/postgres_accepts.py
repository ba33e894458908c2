"""Accepting events into PostgreSQL, each event once, also where the database's answer is lost.

Owns the ids of events whose accept has failed and which may be in the tables all the same. The callers of such accepts got an
error; the next accept deletes the events. A worker that starts before that runs these events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sockd.base.config import EventsConfig
from sockd.base.errors import DatabaseUnavailable
from sockd.base.postgres.database import Database
from sockd.events.dead_letter_table import MOVED
from sockd.events.event import Event
from sockd.events.postgres_recovery import Owner

if TYPE_CHECKING:
    from sockd.base.postgres.database import Connection

EVENT_MARKS = ", ".join(f"${number}" for number in range(4, 4 + len(MOVED.split(","))))
ADD = f"""
WITH me AS (SELECT id AS worker, epoch FROM workers WHERE id = $1 AND epoch = $2 FOR SHARE),
body AS (INSERT INTO bodies SELECT $4, $3 FROM me ON CONFLICT DO NOTHING)
INSERT INTO events (worker, epoch, {MOVED})
SELECT me.worker, me.epoch, {EVENT_MARKS} FROM me ON CONFLICT DO NOTHING RETURNING seq
"""
SEQ = "SELECT seq FROM events WHERE id = $1 AND worker = $2 AND epoch = $3"
REMEMBER = """
INSERT INTO accepted (key, id, at) VALUES ($1, $2, $3)
ON CONFLICT (key) DO UPDATE SET id = excluded.id, at = excluded.at, number = excluded.number WHERE accepted.at < $4
RETURNING number
"""
FORGET_ACCEPTED = "DELETE FROM accepted WHERE at < $1 OR number <= $2"
UNDO = """
WITH gone AS (DELETE FROM events WHERE id = ANY($1::bytea[]) AND worker = $3 AND epoch = $4 RETURNING id),
body AS (DELETE FROM bodies USING gone WHERE bodies.id = gone.id)
DELETE FROM accepted USING gone WHERE accepted.key = ANY($2::bytea[]) AND accepted.id = gone.id
"""


class NameTaken(DatabaseUnavailable):
    """This worker's epoch is over: another one has started with its name, or its group has declared it dead."""


class _Failed(NamedTuple):
    key: bytes
    at: float


class PostgresAccepts:
    """`accept` may be called by many at a time."""

    def __init__(self, database: Database, config: EventsConfig) -> None:
        self._database = database
        self._config = config
        self._failed: dict[bytes, _Failed] = {}
        """By the ids of the events. They stay as long as keys do: a server that was slow commits after the first undoing."""

    async def accept(self, owner: Owner, event: Event, payload: bytes, key: bytes) -> bytes:
        """As `EventBackend.accept`. Raises: StorageFull, DatabaseUnavailable."""
        is_begun = False

        async def accept(connection: Connection) -> tuple[int, bytes]:
            nonlocal is_begun
            await self._undo(connection, owner)
            is_begun = True
            known = await self._remembered(connection, event, key) if key else None
            if known in self._failed:  # committed since it was looked for
                await self._undo(connection, owner)
                known = await self._remembered(connection, event, key)
            if known is not None:
                return 0, known
            return await add(connection, owner, event, payload), event.id

        try:
            # Usually one statement, which needs no transaction around it.
            event.seq, event_id = await self._database.run(accept, begin=bool(key or self._failed))
        except NameTaken:
            raise
        except DatabaseUnavailable:
            if is_begun:
                self._failed[event.id] = _Failed(key, event.accepted_at)
            raise
        since = event.accepted_at - self._config.remember_s
        self._failed = {each: failed for each, failed in self._failed.items() if failed.at >= since}
        return event_id

    async def _undo(self, connection: Connection, owner: Owner) -> None:
        if self._failed:
            await connection.execute(UNDO, list(self._failed), [each.key for each in self._failed.values()], *owner)

    async def _remembered(self, connection: Connection, event: Event, key: bytes) -> bytes | None:
        """Return the id of another event that the key stands for; None: it stands for this one now."""
        since = event.accepted_at - self._config.remember_s
        number = await connection.fetchval(REMEMBER, key, event.id, event.accepted_at, since)
        if number is not None:
            await connection.execute(FORGET_ACCEPTED, since, number - self._config.max_remembered)
            return None
        known: bytes = await connection.fetchval("SELECT id FROM accepted WHERE key = $1", key)
        return known if known != event.id else None


async def add(connection: Connection, owner: Owner, event: Event, payload: bytes) -> int:
    """Return the `seq` of an event that is stored now, or was already. Raises: NameTaken."""
    fields = msgspec.structs.astuple(event)[1:]
    seq = await connection.fetchval(ADD, *owner, payload, *fields)
    if seq is None:  # it is there already, if the answer of a commit was lost
        seq = await connection.fetchval(SEQ, event.id, *owner)
    if seq is None:
        raise NameTaken(
            f"another worker has started as {owner.worker!r} on the same database: stop one of them, or give it another "
            "postgres.worker; or this worker was silent for too long, and joins its group again in a moment"
        )
    return int(seq)
