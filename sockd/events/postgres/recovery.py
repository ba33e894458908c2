"""How a worker takes up events in PostgreSQL: its own when it starts, with a new epoch, and those of a worker that has died.

Owns nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sockd.base.config import EventsConfig
from sockd.events.attempt_table import Suspect
from sockd.events.dead_letter_table import NAMES
from sockd.events.event import Event
from sockd.events.event_backend import DeadTotal, Recovered
from sockd.events.event_configs import EventInvokeConfig
from sockd.events.event_policy import delay_after_death_s
from sockd.events.schedules.schedule_table import Schedule

if TYPE_CHECKING:
    from sockd.base.postgres.database import Connection

CONFIG_NAMES = ", ".join(EventInvokeConfig.__struct_fields__)
SCHEDULE_NAMES = ", ".join(Schedule.__struct_fields__)
CLOCK = "extract(epoch FROM clock_timestamp())::double precision"
"""The database's clock, which all workers share, as Unix time."""
EPOCH = f"""
INSERT INTO workers (id, epoch, started_at, seen_at, silent_s) VALUES ($1, ({CLOCK} * 1e6)::bigint, $2, {CLOCK}, $3)
ON CONFLICT (id) DO UPDATE SET epoch = workers.epoch + 1, started_at = excluded.started_at, seen_at = excluded.seen_at,
    silent_s = excluded.silent_s, taken_by = '' RETURNING epoch
"""
"""A new worker begins with the time: a row that was deleted had a smaller epoch."""
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


class Owner:
    """The worker that has an event, and the worker's epoch; iterable, as parameters of statements.

    One object for all that write in the name of a worker, which gets another epoch when the worker joins its group again."""

    __slots__ = ("epoch", "silent_s", "started_at", "worker")

    def __init__(self, worker: str, silent_s: float) -> None:
        """Args: silent_s: after how many seconds of silence others may have its events; 0: never."""
        self.worker = worker
        self.silent_s = silent_s
        self.epoch = 0
        self.started_at = 0.0
        """Unix time, which tells this worker from another one of its name."""

    def __iter__(self) -> Iterator[Any]:
        return iter((self.worker, self.epoch))


async def recover(connection: Connection, owner: Owner, now: float, config: EventsConfig) -> tuple[int, Recovered]:
    """Begin a worker's next epoch, in a transaction; return it and what is stored."""
    epoch = await connection.fetchval(EPOCH, owner.worker, now, owner.silent_s)
    return epoch, await take(connection, owner.worker, (owner.worker, epoch), now, config)


async def take(connection: Connection, dead: str, owner: Iterable[Any], now: float, config: EventsConfig) -> Recovered:
    """Count the death of a worker against the events that it was running, give all of its events to another one or to its
    next life, and return them with all that workers share."""
    await _note_death(connection, dead, now, config)
    waiting = await connection.fetch(f"SELECT {NAMES} FROM events WHERE worker = $1 ORDER BY seq", dead)
    suspects = await connection.fetch(SUSPECTS, dead)
    await connection.execute("UPDATE events SET worker = $2, epoch = $3 WHERE worker = $1", dead, *owner)
    shared = await read_shared(connection)
    return shared._replace(waiting=[Event(*row) for row in waiting], suspects=[Suspect(*row) for row in suspects])


async def read_shared(connection: Connection) -> Recovered:
    """Return what all workers share: configs, schedules, the total of the dead letters."""
    configs = await connection.fetch(f"SELECT {CONFIG_NAMES} FROM configs")
    schedules = await connection.fetch(f"SELECT {SCHEDULE_NAMES} FROM schedules ORDER BY name")
    return Recovered(
        waiting=[],
        suspects=[],
        configs=[EventInvokeConfig(**dict(row)) for row in configs],
        schedules=[Schedule(**dict(row)) for row in schedules],
        dead=await dead_total(connection),
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
