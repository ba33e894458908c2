"""A group of workers on one PostgreSQL database, as rows: who is there, who is silent, and who has the events of the dead.

A worker reports with its epoch. One that is silent for too long is declared dead by compare-and-set: its row gets the next
epoch, and in the same transaction its events get the worker that was first. So a worker that was only stopped changes nothing
when it goes on: its epoch is over, and it joins again with another one. Times are the database's: workers' clocks need not agree.

Owns the connection that reports, and hears of changes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sockd.base.config import EventsConfig, PostgresConfig
from sockd.base.errors import DatabaseUnavailable, SockdError
from sockd.base.postgres.database import Database
from sockd.base.postgres.listener import Listener
from sockd.events.event_backend import Recovered
from sockd.events.postgres.recovery import CLOCK, SCHEDULE_NAMES, Owner, read_shared, take
from sockd.events.schedules.schedule_table import Schedule

if TYPE_CHECKING:
    from sockd.base.postgres.database import Connection

CHANNEL = "sockd_shared"
"""The channel of notifications of changes of what all workers share, and of new claims."""
SHOWN_S = 86_400.0
"""How long a worker that is dead is shown."""
FORGET_S = 30 * SHOWN_S
"""How long its row is kept: a machine that was suspended for less joins its group again."""
ME = "id = $1 AND epoch = $2"
IS_SILENT = f"taken_by = '' AND silent_s > 0 AND seen_at + silent_s < {CLOCK}"
NAME_GROUP = "INSERT INTO group_name (name) VALUES ($1) ON CONFLICT DO NOTHING"
REPORT = f"""
UPDATE workers SET seen_at = {CLOCK}, about = $3 WHERE {ME} RETURNING (SELECT revision FROM shared), ARRAY(
    SELECT id FROM workers WHERE id = $1 OR taken_by = '' AND seen_at + silent_s >= {CLOCK} AND silent_s > 0
        AND (about::json->>'draining') IS DISTINCT FROM 'true' ORDER BY id
), ARRAY(
    SELECT id || ' ' || (about::json->>'cache_node') FROM workers WHERE id <> $1 AND taken_by = ''
        AND seen_at + silent_s >= {CLOCK} AND silent_s > 0 AND about::json->>'cache_node' <> '' ORDER BY id
), ARRAY(
    SELECT id || ' ' || (about::json->>'claims') FROM workers WHERE id <> $1 AND taken_by = ''
        AND seen_at + silent_s >= {CLOCK} AND silent_s > 0 AND about::json->>'claims' <> '{{}}' ORDER BY id
), CASE WHEN $4 THEN pg_notify('{CHANNEL}', '') END
"""
LEAVE = f"UPDATE workers SET seen_at = 0 WHERE {ME}"
JOIN_AGAIN = f"""
UPDATE workers SET epoch = epoch + 1, taken_by = '', seen_at = {CLOCK}
WHERE id = $1 AND epoch > $2 AND started_at = $3 RETURNING epoch
"""
"""The answer of an earlier one may have been lost; but no other worker has started with the name."""
SILENT = f"SELECT id FROM workers WHERE {IS_SILENT} AND id <> $1 ORDER BY id"
DECLARE_DEAD = f"UPDATE workers SET epoch = epoch + 1, taken_by = $2 WHERE id = $1 AND {IS_SILENT} RETURNING true"
IS_ALIVE = f"SELECT true FROM workers WHERE {ME} FOR SHARE"
MEMBERS = f"""
SELECT id, {CLOCK} - seen_at, taken_by, about, (SELECT count(*) FROM events WHERE worker = workers.id) FROM workers
WHERE silent_s > 0 AND seen_at > {CLOCK} - $1 ORDER BY id
"""
SCHEDULE = f"SELECT {SCHEDULE_NAMES} FROM schedules WHERE name = $1"
FORGET = f"DELETE FROM workers WHERE taken_by <> '' AND seen_at < {CLOCK} - $1"


class OtherGroup(SockdError):
    """The database is the one of another group; the daemon does not start."""


class Reported(NamedTuple):
    """The answer to a report."""

    revision: int
    """The revision of what all workers share."""
    workers: list[str]
    """The workers that are live and take requests, and this one, by name."""
    nodes: list[str]
    """The cache nodes of the other live workers, also of those that drain: the worker's name, a space, ADDRESS:PORT."""
    claims: list[str]
    """What the other live workers claim of functions' concurrency: the worker's name, a space, JSON."""


class Member(msgspec.Struct, frozen=True):
    """A worker of a group, as it reported last."""

    name: str
    seen_s: float
    """How long ago that was."""
    taken_by: str
    """The worker that took over its events, as it was dead; empty: it is alive."""
    about: msgspec.Raw
    """What it reported, as JSON."""
    events: int
    """Events that it has, or that were not taken over yet."""


class PostgresGroup:
    """The group of one worker."""

    def __init__(self, database: Database, postgres: PostgresConfig, owner: Owner, config: EventsConfig) -> None:
        """Args: owner: the worker; it gets another epoch here."""
        self._database = database
        self._listener = Listener(postgres, CHANNEL)
        self.owner = owner
        self._config = config

    @property
    def heard(self) -> asyncio.Event:
        """Set when another worker has changed what all share, or claims more. The reader clears it before a report."""
        return self._listener.heard

    def close(self) -> None:
        """Report no more. Safe to call twice."""
        self._listener.close()

    async def join(self, name: str) -> None:
        """Check that the database is the group's, which it becomes with its first worker. Raises: OtherGroup,
        DatabaseUnavailable."""

        async def join(connection: Connection) -> str:
            await connection.execute(NAME_GROUP, name)
            found: str = await connection.fetchval("SELECT name FROM group_name")
            return found

        found = await self._database.run(join)
        if found != name:
            raise OtherGroup(
                f"the database is of the group {found!r}, not of {name!r}: correct group.name, or give this group a database of "
                "its own"
            )

    async def report(self, about: bytes, notify: bool = False) -> Reported | None:
        """Report that this worker is alive, and what it is. Args: notify: the others are to report at once, too.

        Returns: None: this worker's epoch is over."""
        rows = await self._listener.fetch(REPORT, *self.owner, about.decode(), notify)
        return Reported(*rows[0][:-1]) if rows else None

    async def join_again(self) -> bool:
        """Begin another epoch, after this worker was declared dead; False: another one has its name."""
        epoch = await self._database.value(JOIN_AGAIN, *self.owner, self.owner.started_at)
        if epoch is not None:
            self.owner.epoch = epoch
        return epoch is not None

    async def silent(self) -> list[str]:
        """Return the workers that are to be declared dead; forget those that have been dead for long."""
        await self._database.value(FORGET, FORGET_S)
        rows = await self._database.run(lambda connection: connection.fetch(SILENT, self.owner.worker), begin=False)
        return [name for (name,) in rows]

    async def take_over(self, dead: str, now: float) -> Recovered | None:
        """Declare a worker dead and take its events over, with all that workers share; None: another worker was first, or the
        worker is not silent any more.

        Where the answer of the commit is lost, they are returned all the same: those that another worker has cannot be begun."""
        taken: Recovered | None = None

        async def take_over(connection: Connection) -> None:
            nonlocal taken
            if await connection.fetchval(IS_ALIVE, *self.owner) is None:
                return
            if await connection.fetchval(DECLARE_DEAD, dead, self.owner.worker) is not None:
                taken = await take(connection, dead, self.owner, now, self._config)

        try:
            await self._database.run(take_over)
        except DatabaseUnavailable:
            if taken is None:
                raise
        return taken

    async def shared(self) -> Recovered:
        """Return what all workers share, without events."""
        return await self._database.run(read_shared)

    async def schedule(self, name: str) -> Schedule | None:
        """Return a schedule as it is stored, if there is one."""
        rows = await self._database.run(lambda connection: connection.fetch(SCHEDULE, name), begin=False)
        return Schedule(**dict(rows[0])) if rows else None

    async def members(self) -> list[Member]:
        """Return the workers of the last day, by name."""
        rows = await self._database.run(lambda connection: connection.fetch(MEMBERS, SHOWN_S), begin=False)
        return [
            Member(name, seen_s, by, msgspec.Raw(about.encode()), events) for name, seen_s, by, about, events in rows
        ]
