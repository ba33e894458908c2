"""How a worker takes up its events in PostgreSQL when it starts: a new epoch, the death of the last one, what is there.

Owns nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sockd.base.config import EventsConfig
from sockd.events.attempt_table import Suspect
from sockd.events.dead_letter_table import NAMES
from sockd.events.event import Event
from sockd.events.event_backend import DeadTotal, Recovered
from sockd.events.event_configs import EventInvokeConfig
from sockd.events.event_policy import delay_after_death_s
from sockd.events.schedule_table import Schedule

if TYPE_CHECKING:
    from sockd.base.postgres.database import Connection

CONFIG_NAMES = ", ".join(EventInvokeConfig.__struct_fields__)
SCHEDULE_NAMES = ", ".join(Schedule.__struct_fields__)
EPOCH = """
INSERT INTO workers VALUES ($1, 1, $2)
ON CONFLICT (id) DO UPDATE SET epoch = workers.epoch + 1, started_at = excluded.started_at RETURNING epoch
"""
DEATHS = """
SELECT DISTINCT function, coalesce(s.deaths, 0) FROM events LEFT JOIN suspicions s USING (function)
WHERE worker = $1 AND running
"""
SUSPECT = """
INSERT INTO suspicions VALUES ($1, $2, $3, $4)
ON CONFLICT (function) DO UPDATE SET deaths = excluded.deaths, died_at = excluded.died_at, due_at = excluded.due_at
"""
INTERRUPTED = (
    "UPDATE events SET attempts = attempts + 1, deaths = deaths + 1, running = false WHERE worker = $1 AND running"
)
SUSPECTS = """
SELECT seq, function, e.deaths, coalesce(s.due_at, 0) FROM events e LEFT JOIN suspicions s USING (function)
WHERE worker = $1 AND e.deaths > 0 ORDER BY seq
"""


class Owner(NamedTuple):
    """The worker that has an event, and the worker's epoch."""

    worker: str
    epoch: int = 0


async def recover(connection: Connection, worker: str, now: float, config: EventsConfig) -> tuple[Owner, Recovered]:
    """Begin a worker's next epoch, in a transaction; return it and what is stored."""
    owner = Owner(worker, await connection.fetchval(EPOCH, worker, now))
    await _note_death(connection, worker, now, config)
    await connection.execute("UPDATE events SET epoch = $2 WHERE worker = $1", *owner)
    waiting = await connection.fetch(f"SELECT {NAMES} FROM events WHERE worker = $1 ORDER BY seq", worker)
    suspects = await connection.fetch(SUSPECTS, worker)
    configs = await connection.fetch(f"SELECT {CONFIG_NAMES} FROM configs")
    schedules = await connection.fetch(f"SELECT {SCHEDULE_NAMES} FROM schedules ORDER BY name")
    return owner, Recovered(
        [Event(*row) for row in waiting],
        [Suspect(*row) for row in suspects],
        [EventInvokeConfig(**dict(row)) for row in configs],
        [Schedule(**dict(row)) for row in schedules],
        await dead_total(connection),
    )


async def _note_death(connection: Connection, worker: str, now: float, config: EventsConfig) -> None:
    await connection.execute("DELETE FROM suspicions WHERE died_at < $1", now - 2 * config.max_death_delay_s)
    for function, deaths in await connection.fetch(DEATHS, worker):
        due_at = now + delay_after_death_s(deaths + 1, config)
        await connection.execute(SUSPECT, function, deaths + 1, now, due_at)
    await connection.execute(INTERRUPTED, worker)


async def dead_total(connection: Connection) -> DeadTotal:
    """Return how much the dead letters are."""
    ((number, size_bytes),) = await connection.fetch("SELECT number, size FROM dead_total")
    return DeadTotal(number, size_bytes)
