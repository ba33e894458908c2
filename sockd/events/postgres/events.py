"""The event backend of workers that keep their events in PostgreSQL.

Owns the database's pool. Each event has the worker that accepted it and that worker's epoch, which grows at each start: a worker
in whose name another one has started changes nothing any more, and its accepts fail. A verb is one transaction, most of them
one statement; begins, ends and accepts that come while others are made are made together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sockd.base.config import EventsConfig, PostgresConfig
from sockd.base.postgres.database import Database, excluded
from sockd.events.dead_letter_table import MOVED, NAMES, DeadLetter, storable
from sockd.events.event import Event
from sockd.events.event_backend import MOST_AT_ONCE, Burial, DeadTotal, Death, Recovered
from sockd.events.event_configs import EventInvokeConfig
from sockd.events.postgres.accepts import SEQ, PostgresAccepts, add
from sockd.events.postgres.attempts import END, PostgresAttempts
from sockd.events.postgres.group import CHANNEL, LEAVE, PostgresGroup
from sockd.events.postgres.recovery import CONFIG_NAMES, SCHEDULE_NAMES, Owner, dead_total, recover
from sockd.events.postgres.schema import MIGRATIONS
from sockd.events.schedules.schedule_table import Schedule

if TYPE_CHECKING:
    from sockd.base.postgres.database import Connection, excluded

MINE = "seq = $1 AND worker = $2 AND epoch = $3"
PAYLOAD = f"SELECT body FROM bodies JOIN events USING (id) WHERE {MINE}"
NOTE = f"UPDATE events SET running = false, due_at = $4, attempts = $5, failures = $6, throttles = $7 WHERE {MINE}"
BURY = f"""
WITH gone AS (DELETE FROM events WHERE {{}} RETURNING {NAMES})
INSERT INTO dead ({MOVED}, died_at, reason, error_type, error)
SELECT {MOVED}, $4, $5, $6, $7 FROM gone ORDER BY seq RETURNING seq
"""
BURY_ONE = BURY.format(MINE)
BURY_FUNCTION = BURY.format("function = $1 AND seq <> ALL($2::bigint[]) AND (worker = $3 OR NOT running)")
INTERRUPT = "UPDATE events SET running = false WHERE worker = $1 AND epoch = $2 AND running"
TRIM = """
WITH old AS (DELETE FROM dead WHERE seq IN (SELECT seq FROM dead ORDER BY seq LIMIT $1) RETURNING id)
DELETE FROM bodies USING old WHERE bodies.id = old.id
"""
DEAD_NAMES = ", ".join(DeadLetter.__struct_fields__)
CHOSEN = "($1::text IS NULL OR function = $1) AND ($2::bytea IS NULL OR id = $2)"
LAST = f"SELECT {DEAD_NAMES} FROM dead WHERE {CHOSEN} ORDER BY seq DESC LIMIT $3"
TAKEN = f"DELETE FROM dead WHERE seq IN (SELECT seq FROM dead WHERE {CHOSEN} ORDER BY seq DESC LIMIT $3) RETURNING *"
DISCARD = f"WITH old AS ({TAKEN}) DELETE FROM bodies USING old WHERE bodies.id = old.id RETURNING bodies.id"
REVIVE = f"""
WITH old AS ({TAKEN})
INSERT INTO events (worker, epoch, {MOVED})
SELECT $5, $6, id, function, qualifier, source, 0, $4, $4, attempts, 0, 0, size, trace FROM old ORDER BY seq DESC
RETURNING {NAMES}
"""
PUT_CONFIG = f"""
INSERT INTO configs ({CONFIG_NAMES}) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (function, qualifier) DO UPDATE SET ({CONFIG_NAMES}) = ({excluded(CONFIG_NAMES)})
"""
PUT_SCHEDULE = f"""
INSERT INTO schedules ({SCHEDULE_NAMES}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (name) DO UPDATE SET ({SCHEDULE_NAMES}) = ({excluded(SCHEDULE_NAMES)})
"""
TICK = """
UPDATE schedules SET next_at = $4, last_at = $5 WHERE name = $1 AND next_at = $2 AND created_at = $3 AND enabled RETURNING 1
"""
TICKED = "SELECT 0 FROM schedules WHERE name = $1 AND created_at = $2 AND next_at = $3 AND last_at = $4"


class PostgresEvents:
    """An `EventBackend`."""

    def __init__(self, database: Database, postgres: PostgresConfig, owner: Owner, config: EventsConfig) -> None:
        """Args: database: owned from now on; owner: the worker that has the events."""
        self._database = database
        self._owner = owner
        self._config = config
        self._accepts = PostgresAccepts(database, config)
        self._attempts = PostgresAttempts(database, owner)
        self.group = PostgresGroup(database, postgres, self._owner, config)

    @classmethod
    async def open(cls, postgres: PostgresConfig, config: EventsConfig, *, silent_s: float = 0.0) -> PostgresEvents:
        """Open the events of the worker that `postgres` names.

        Args: silent_s: after how many seconds of silence others of its group may have them; 0: it is in none.
        Raises: BadDatabase, DatabaseUnavailable."""
        database = await Database.open(postgres, part="events", migrations=MIGRATIONS)
        return cls(database, postgres, Owner(postgres.worker, silent_s), config)

    async def recover(self, now: float) -> Recovered:
        self._owner.epoch, recovered = await self._database.run(
            lambda connection: recover(connection, self._owner, now, self._config)
        )
        self._owner.started_at = now
        return recovered

    # -- events

    async def accept(self, event: Event, payload: bytes, key: bytes = b"") -> bytes:
        return await self._accepts.accept(self._owner, event, payload, key)

    async def payload(self, event: Event) -> bytes | None:
        payload: bytes | None = await self._database.value(PAYLOAD, *self._mine(event))
        return payload

    async def begin(self, event: Event) -> bytes | None:
        return await self._attempts.begin(event)

    async def note(self, event: Event) -> None:
        await self._database.value(NOTE, *self._mine(event), *_changed(event))

    async def end(self, event: Event) -> None:
        await self._attempts.end(event)

    async def forward(self, event: Event, follower: Event, payload: bytes) -> None:
        async def forward(connection: Connection) -> int:
            if await connection.fetchval(END, [event.seq], *self._owner) is not None:
                return await add(connection, self._owner, follower, payload)
            # The answer of this very verb was lost, or another worker has the event.
            seq: int | None = await connection.fetchval(SEQ, follower.id, *self._owner)
            return seq or 0

        follower.seq = await self._database.run(forward)

    async def bury(self, event: Event, death: Death) -> Burial:
        async def bury(connection: Connection) -> Burial:
            await connection.execute(NOTE, *self._mine(event), *_changed(event))
            return await _bury(connection, BURY_ONE, self._mine(event), death, self._config)

        return await self._database.run(bury)

    async def interrupt(self) -> None:
        async def interrupt(connection: Connection) -> None:
            await connection.execute(INTERRUPT, *self._owner)
            await connection.execute(LEAVE, *self._owner)

        await self._database.run(interrupt)

    def _mine(self, event: Event) -> tuple[int, str, int]:
        """Return the parameters of `MINE`."""
        return event.seq, *self._owner

    # -- dead letters

    async def dead_letters(self, function: str | None, limit: int) -> list[DeadLetter]:
        rows = await self._database.run(lambda connection: connection.fetch(LAST, function, None, limit))
        return [DeadLetter(*row) for row in rows]

    async def dead_letter(self, event_id: bytes) -> tuple[DeadLetter, bytes] | None:
        query = f"SELECT {DEAD_NAMES}, body FROM dead JOIN bodies USING (id) WHERE id = $1"
        rows = await self._database.run(lambda connection: connection.fetch(query, event_id))
        return (DeadLetter(*rows[0][:-1]), rows[0][-1]) if rows else None

    async def revive(self, function: str | None, event_id: bytes | None, now: float) -> tuple[list[Event], DeadTotal]:
        async def revive(connection: Connection) -> tuple[list[Event], DeadTotal]:
            rows = await connection.fetch(REVIVE, function, event_id, MOST_AT_ONCE, now, *self._owner)
            return [Event(*row) for row in rows], await dead_total(connection)

        return await self._database.run(revive)

    async def discard(self, function: str | None, event_id: bytes | None) -> tuple[int, DeadTotal]:
        async def discard(connection: Connection) -> tuple[int, DeadTotal]:
            gone = await connection.fetch(DISCARD, function, event_id, MOST_AT_ONCE)
            return len(gone), await dead_total(connection)

        return await self._database.run(discard)

    # -- functions

    async def forget(self, function: str, now: float, *, running: list[int]) -> Burial:
        async def forget(connection: Connection) -> Burial:
            await connection.execute("DELETE FROM configs WHERE function = $1", function)
            await connection.execute("DELETE FROM schedules WHERE function = $1", function)
            which = (function, running, self._owner.worker)
            return await _bury(connection, BURY_FUNCTION, which, Death(now, "FunctionRemoved"), self._config)

        return await self._database.run(forget)

    async def forget_qualifier(self, function: str, qualifier: str) -> None:
        async def forget_qualifier(connection: Connection) -> None:
            for table in ("configs", "schedules"):
                query = f"DELETE FROM {table} WHERE function = $1 AND qualifier = $2"
                await connection.execute(query, function, qualifier)

        await self._database.run(forget_qualifier)

    async def _change(self, query: str, *parameters: object) -> None:
        """Change what all workers share, and tell them."""

        async def change(connection: Connection) -> None:
            await connection.execute(query, *parameters)
            await connection.execute(f"NOTIFY {CHANNEL}")

        await self._database.run(change)

    async def configure(self, config: EventInvokeConfig) -> None:
        await self._change(PUT_CONFIG, *msgspec.structs.astuple(config))

    async def unconfigure(self, function: str, qualifier: str) -> None:
        await self._change("DELETE FROM configs WHERE function = $1 AND qualifier = $2", function, qualifier)

    # -- schedules

    async def put_schedule(self, schedule: Schedule) -> None:
        await self._change(PUT_SCHEDULE, *msgspec.structs.astuple(schedule))

    async def remove_schedule(self, name: str) -> None:
        await self._change("DELETE FROM schedules WHERE name = $1", name)

    async def tick(self, old: Schedule, ticked: Schedule, event: Event | None, payload: bytes) -> bool:
        moments = (old.created_at, ticked.next_at, ticked.last_at)

        async def tick(connection: Connection) -> int | None:
            if await connection.fetchval(TICK, old.name, old.next_at, *moments) is not None:
                return await add(connection, self._owner, event, payload) if event is not None else 0
            # The answer of this very tick may have been lost.
            query, which = (SEQ, (event.id, *self._owner)) if event is not None else (TICKED, (old.name, *moments))
            seq: int | None = await connection.fetchval(query, *which)
            return seq

        seq = await self._database.run(tick)
        if event is not None:
            event.seq = seq or 0
        return seq is not None

    async def aclose(self) -> None:
        await self._accepts.aclose()
        await self._attempts.aclose()
        await self._database.aclose()


async def _bury(
    connection: Connection, query: str, which: tuple[object, ...], death: Death, config: EventsConfig
) -> Burial:
    texts = storable(death.error_type), storable(death.error)
    buried = len(await connection.fetch(query, *which, death.at, death.reason, *texts))
    dropped, total = 0, await dead_total(connection)
    while total.number > config.max_dead or total.size_bytes > config.max_dead_bytes:
        over = max(total.number - config.max_dead, 1)
        await connection.execute(TRIM, over)
        dropped, total = dropped + over, await dead_total(connection)
    return Burial(buried, dropped, total)


def _changed(event: Event) -> tuple[float, int, int, int]:
    """Return the parameters of `NOTE` behind those of `MINE`."""
    return event.due_at, event.attempts, event.failures, event.throttles
