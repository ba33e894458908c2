"""What a whole cell of workers asks of its store when nothing happens.

    python -m benchmarks.instruments.store_cell DSN WORKERS SECONDS

In one process, each worker of the cell has the two connections and sends the statements that a worker sends: its report and its
look for silent workers at each heartbeat, and its look for changed functions every second. Writes a line when it begins to count,
then JSON: statements, how long looks took, and how much later than planned they began. Owns the connections, and makes the
tables.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from contextlib import AsyncExitStack

import msgspec

from sockd.base.config import EventsConfig, GroupConfig, PostgresConfig
from sockd.base.postgres.database import Database
from sockd.base.postgres.listener import Listener
from sockd.events.postgres.events import PostgresEvents
from sockd.functions.registry.following import CHANGED, POLL_S
from sockd.functions.registry.postgres_schema import CHANNEL, MIGRATIONS

ABOUT = msgspec.json.encode(
    {
        "address": "10.0.0.1:5000",
        "version": "0.1.0",
        "configuration": "0123456789ab",
        "draining": False,
        "running": 12,
        "queued": 0,
        "memory": 0.512,
        "functions": 5000,
        "revision": 1_000_000,
        "divisor": 200,
    }
)
"""A report as workers make it."""
NEVER = 1 << 40
"""A revision that no function has: nothing has changed since."""
LIFE_S = 600.0
"""After this silence a worker would be dead; none is while the cell joins."""
TIMEOUT_S = 60.0
WARM_UP_S = 2 * GroupConfig().heartbeat_s


class Cell:
    """The workers of one cell."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._ends_s = 0.0
        self.looks_ms: list[float] = []
        self.late_ms: list[float] = []
        self.statements = 0

    async def work(self, workers: int, seconds: float) -> None:
        """Be all workers for so long, after all have joined."""
        async with AsyncExitStack() as stack:
            joined = [await self._join(f"cell{number}", stack) for number in range(workers)]
            self._ends_s = time.monotonic() + WARM_UP_S + seconds
            asyncio.get_running_loop().call_later(WARM_UP_S, self._begin)
            await asyncio.gather(
                *(act for events, listener in joined for act in (self._beat(events), self._look(listener)))
            )

    async def _join(self, name: str, stack: AsyncExitStack) -> tuple[PostgresEvents, Listener]:
        config = PostgresConfig(dsn=self._dsn, worker=name, connections=1, timeout_s=TIMEOUT_S)
        events = await PostgresEvents.open(config, EventsConfig(), silent_s=LIFE_S)
        stack.push_async_callback(events.aclose)
        stack.callback(events.group.close)
        await events.recover(time.time())
        listener = Listener(config, CHANNEL)
        stack.callback(listener.close)
        await listener.fetch(CHANGED, NEVER)
        return events, listener

    def _begin(self) -> None:
        """Count from now on: each connection has planned its statements."""
        print("counting", flush=True)
        self.statements = 0
        self.looks_ms.clear()
        self.late_ms.clear()

    async def _beat(self, events: PostgresEvents) -> None:
        beat_s = GroupConfig().heartbeat_s
        await asyncio.sleep(random.random() * beat_s)
        while time.monotonic() < self._ends_s:
            assert await events.group.report(ABOUT) is not None
            await events.group.silent()
            self.statements += 3
            await asyncio.sleep(beat_s)

    async def _look(self, listener: Listener) -> None:
        due_s = time.monotonic() + random.random() * POLL_S
        while due_s < self._ends_s:
            await asyncio.sleep(max(due_s - time.monotonic(), 0))
            began_s = time.monotonic()
            await listener.fetch(CHANGED, NEVER)
            self.late_ms.append((began_s - due_s) * 1000)
            self.looks_ms.append((time.monotonic() - began_s) * 1000)
            self.statements += 1
            due_s += POLL_S


async def main(dsn: str, workers: int, seconds: float) -> None:
    functions = await Database.open(PostgresConfig(dsn=dsn), part="functions", migrations=MIGRATIONS)
    await functions.aclose()
    cell = Cell(dsn)
    await cell.work(workers, seconds)
    found = {"statements": cell.statements, "looks_ms": cell.looks_ms, "late_ms": cell.late_ms}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
