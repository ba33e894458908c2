"""Backends of events that tests open, close and open again, each on a store of the test's own."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from sockd.base.config import EventsConfig
from sockd.events.event_backend import EventBackend
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
