"""Accepting events into PostgreSQL, each event once, also where the database's answer is lost.

Events that come while others are being stored are stored together. Owns the ids of events whose accept has failed and which may
be in the tables all the same. The callers of such accepts got an error; the next accept deletes the events. A worker that
starts before that runs these events.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar, get_type_hints

import msgspec

from sockd.base.batching import Batching
from sockd.base.config import EventsConfig
from sockd.base.errors import DatabaseUnavailable
from sockd.base.postgres.database import Database
from sockd.events.dead_letter_table import MOVED
from sockd.events.event import Event
from sockd.events.postgres.recovery import Owner

if TYPE_CHECKING:
    from sockd.base.postgres.database import Connection

T = TypeVar("T")
MOST_TOGETHER = 256
MOST_BYTES_TOGETHER = 4 << 20
"""The most events of one statement, and the most bytes of their payloads."""
TYPES = {bytes: "bytea", str: "text", int: "bigint", float: "double precision"}
"""PostgreSQL's types of an event's fields."""
COLUMNS = [TYPES[kind] for kind in list(get_type_hints(Event).values())[1:]]
ARRAYS = ", ".join(f"${number}::{column}[]" for number, column in enumerate(["bytea", *COLUMNS], 3))
ADD = f"""
WITH me AS (SELECT id AS worker, epoch FROM workers WHERE id = $1 AND epoch = $2 FOR SHARE),
new AS (SELECT * FROM unnest({ARRAYS}) AS new (body, {MOVED}), me),
body AS (INSERT INTO bodies SELECT id, body FROM new ON CONFLICT DO NOTHING)
INSERT INTO events (worker, epoch, {MOVED}) SELECT worker, epoch, {MOVED} FROM new ON CONFLICT DO NOTHING RETURNING id, seq
"""
SEQS = "SELECT id, seq FROM events WHERE id = ANY($1::bytea[]) AND worker = $2 AND epoch = $3"
SEQ = SEQS.replace("SELECT id, seq", "SELECT seq").replace("= ANY($1::bytea[])", "= $1")
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


class _New(NamedTuple):
    """An event that is to be stored."""

    owner: Owner
    event: Event
    payload: bytes


class PostgresAccepts:
    """`accept` may be called by many at a time."""

    def __init__(self, database: Database, config: EventsConfig) -> None:
        self._database = database
        self._config = config
        self._failed: dict[bytes, _Failed] = {}
        """By the ids of the events. They stay as long as keys do: a server that was slow commits after the first undoing."""
        self._adding = Batching(
            self._add, lambda new: len(new.payload), most=MOST_TOGETHER, most_size=MOST_BYTES_TOGETHER
        )

    async def accept(self, owner: Owner, event: Event, payload: bytes, key: bytes) -> bytes:
        """As `EventBackend.accept`. Raises: StorageFull, DatabaseUnavailable."""
        new = _New(owner, event, payload)
        if not key:
            event.seq = await self._adding.do(new)
            return event.id

        async def accept(connection: Connection) -> tuple[int, bytes]:
            known = await self._remembered(connection, event, key)
            if known in self._failed:  # committed since it was looked for
                await self._undo(connection, owner)
                known = await self._remembered(connection, event, key)
            if known is not None:
                return 0, known
            return await add(connection, owner, event, payload), event.id

        event.seq, event_id = await self._noting_failures([new], accept, key)
        return event_id

    async def aclose(self) -> None:
        """Wait for the accepts that are under way."""
        await self._adding.aclose()

    async def _add(self, news: Sequence[_New]) -> list[int]:
        """Store events without keys; return their `seq`."""

        async def add_all(connection: Connection) -> list[int]:
            return await _added(connection, news[0].owner, news)

        return await self._noting_failures(news, add_all)

    async def _noting_failures(
        self, news: Sequence[_New], accept: Callable[[Connection], Awaitable[T]], key: bytes = b""
    ) -> T:
        """Run what stores events, after those are deleted whose accepts have failed; note it if this one fails, too."""
        is_begun, owner = False, news[0].owner

        async def run(connection: Connection) -> T:
            nonlocal is_begun
            await self._undo(connection, owner)
            is_begun = True
            return await accept(connection)

        try:
            # Usually one statement, which needs no transaction around it.
            done = await self._database.run(run, begin=bool(key or self._failed))
        except NameTaken:
            raise
        except DatabaseUnavailable:
            if is_begun:
                self._failed |= {new.event.id: _Failed(key, new.event.accepted_at) for new in news}
            raise
        since = news[0].event.accepted_at - self._config.remember_s
        self._failed = {each: failed for each, failed in self._failed.items() if failed.at >= since}
        return done

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
    (seq,) = await _added(connection, owner, [_New(owner, event, payload)])
    return seq


async def _added(connection: Connection, owner: Owner, news: Sequence[_New]) -> list[int]:
    """Store events in one statement; return their `seq`, in order. Raises: NameTaken."""
    columns = zip(*((new.payload, *msgspec.structs.astuple(new.event)[1:]) for new in news), strict=True)
    seqs = {row["id"]: row["seq"] for row in await connection.fetch(ADD, *owner, *map(list, columns))}
    ids = [new.event.id for new in news]
    missing = [each for each in ids if each not in seqs]
    if missing:  # they are there already, if the answer of a commit was lost
        seqs |= {row["id"]: row["seq"] for row in await connection.fetch(SEQS, missing, *owner)}
    if not seqs.keys() >= set(ids):
        raise NameTaken(
            f"another worker has started as {owner.worker!r} on the same database: stop one of them, or give it another "
            "postgres.worker; or this worker was silent for too long, and joins its group again in a moment"
        )
    return [seqs[each] for each in ids]
