"""Begins and ends of attempts in PostgreSQL: those that come while others are written are written together.

Owns nothing: the database is that of `PostgresEvents`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sockd.base.batching import Batching
from sockd.base.postgres.database import Database
from sockd.events.event import Event
from sockd.events.postgres.accepts import MOST_BYTES_TOGETHER, MOST_TOGETHER
from sockd.events.postgres.recovery import Owner

THESE = "seq = ANY($1::bigint[]) AND worker = $2 AND epoch = $3"
BEGIN = f"""
UPDATE events SET running = true WHERE {THESE}
RETURNING seq, (SELECT body FROM bodies WHERE bodies.id = events.id), set_config('synchronous_commit', 'off', true)
"""
"""A begin need not be on the disk when the attempt runs: if the database loses it, and then the worker dies, the event runs again
all the same, and its death is not counted."""
END = f"""
WITH gone AS (DELETE FROM events WHERE {THESE} RETURNING id)
DELETE FROM bodies USING gone WHERE bodies.id = gone.id RETURNING true
"""


class PostgresAttempts:
    """`begin` and `end` may be called by many at a time."""

    def __init__(self, database: Database, owner: Owner) -> None:
        self._database = database
        self._owner = owner
        self._begins = Batching(self._begin, _size, most=MOST_TOGETHER, most_size=MOST_BYTES_TOGETHER)
        self._ends = Batching(self._end, _size, most=MOST_TOGETHER, most_size=MOST_BYTES_TOGETHER)

    async def begin(self, event: Event) -> bytes | None:
        """As `EventBackend.begin`."""
        return await self._begins.do(event)

    async def end(self, event: Event) -> None:
        """As `EventBackend.end`."""
        await self._ends.do(event)

    async def aclose(self) -> None:
        """Wait for what is being written."""
        await self._begins.aclose()
        await self._ends.aclose()

    async def _begin(self, events: Sequence[Event]) -> list[bytes | None]:
        seqs = [event.seq for event in events]
        rows = await self._database.run(lambda connection: connection.fetch(BEGIN, seqs, *self._owner), begin=False)
        payloads = {seq: payload for seq, payload, _ in rows}
        return [payloads.get(seq) for seq in seqs]

    async def _end(self, events: Sequence[Event]) -> list[None]:
        await self._database.value(END, [event.seq for event in events], *self._owner)
        return [None] * len(events)


def _size(event: Event) -> int:
    return event.size
