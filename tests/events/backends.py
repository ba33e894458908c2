"""Backends of events that tests open, close and open again, each on a store of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from sockd.base.config import EventsConfig, PostgresConfig
from sockd.base.errors import DatabaseUnavailable
from sockd.events.event_backend import EventBackend
from sockd.events.postgres.events import PostgresEvents
from sockd.events.sqlite_events import SqliteEvents


class Backends(Protocol):
    """One store, which outlives the backends that are opened on it."""

    async def open(self, config: EventsConfig | None = None) -> EventBackend:
        """Open a backend as a daemon does when it starts."""


class SqliteBackends:
    """Backends on one SQLite file."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "events.sqlite"

    async def open(self, config: EventsConfig | None = None) -> EventBackend:
        return SqliteEvents.open(self._path, config or EventsConfig())


class PostgresBackends:
    """Backends on one schema of a PostgreSQL server."""

    def __init__(self, dsn: str, worker: str = "main") -> None:
        self._postgres = PostgresConfig(dsn=dsn, worker=worker, timeout_s=60.0)  # a machine that stops

    async def open(self, config: EventsConfig | None = None) -> EventBackend:
        return await PostgresEvents.open(self._postgres, config or EventsConfig())


@contextmanager
def lost_answers(backend: EventBackend, commit: Callable[[], Awaitable[object]] | None = None) -> Iterator[None]:
    """What is asked of PostgreSQL within the block is done, but its answer is lost.

    Args: commit: awaited before the commit, which nobody waits for."""
    assert isinstance(backend, PostgresEvents)
    run = backend._database.run

    async def unanswered(work: Callable[[Any], Awaitable[object]], *, begin: bool = True) -> None:
        is_done = asyncio.Event()

        async def held(connection: Any) -> None:
            await work(connection)
            is_done.set()
            if commit is not None:
                await commit()

        running = asyncio.ensure_future(run(held, begin=begin))
        await (is_done.wait() if commit is not None else running)
        raise DatabaseUnavailable("the answer was lost")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend._database, "run", unanswered)
        yield
