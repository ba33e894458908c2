"""Schedules as rows: which function, when next, with which event.

Owns the rows of a table; its transactions are the event store's, so that a tick and the event it makes are one.
"""

from __future__ import annotations

import sqlite3
from typing import ClassVar

import msgspec


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule."""

    name: str
    function: str
    qualifier: str = ""
    expression: str
    """rate(...), cron(...), or the five fields of cron(8)."""
    timezone: str = "UTC"
    event: bytes = b""
    """JSON, the `detail` of its events; empty is {}."""
    enabled: bool = True
    created_at: float
    """Unix time, as the next two."""
    next_at: float
    """0: it has no tick to come."""
    last_at: float = 0.0
    """The tick that came last; 0: none has."""


_NAMES = Schedule.__struct_fields__


class ScheduleTable:
    """By name."""

    SCHEMA: ClassVar = """
CREATE TABLE schedules (
    name TEXT PRIMARY KEY,
    function TEXT NOT NULL,
    qualifier TEXT NOT NULL,
    expression TEXT NOT NULL,
    timezone TEXT NOT NULL,
    event BLOB NOT NULL,
    enabled INTEGER NOT NULL,
    created_at REAL NOT NULL,
    next_at REAL NOT NULL,
    last_at REAL NOT NULL
) WITHOUT ROWID;
"""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def put(self, schedule: Schedule) -> None:
        """Instead of the one that has its name."""
        marks = ", ".join("?" * len(_NAMES))
        self._database.execute(f"INSERT OR REPLACE INTO schedules VALUES ({marks})", msgspec.structs.astuple(schedule))

    def advance(self, old: Schedule, new: Schedule) -> bool:
        """Put one in place of another, if that one is still there as it was before its tick."""
        is_there = self._database.execute(
            "SELECT 1 FROM schedules WHERE name = ? AND next_at = ? AND created_at = ? AND enabled",
            (old.name, old.next_at, old.created_at),
        ).fetchone()
        if is_there:
            self.put(new)
        return bool(is_there)

    def remove(self, name: str) -> None:
        self._database.execute("DELETE FROM schedules WHERE name = ?", (name,))

    def remove_function(self, function: str) -> None:
        """All of a function."""
        self._database.execute("DELETE FROM schedules WHERE function = ?", (function,))

    def remove_qualifier(self, function: str, qualifier: str) -> None:
        """All of one version of a function, or of an alias."""
        values = (function, qualifier)
        self._database.execute("DELETE FROM schedules WHERE function = ? AND qualifier = ?", values)

    def all(self) -> list[Schedule]:
        """Every one, by name."""
        rows = self._database.execute(f"SELECT {', '.join(_NAMES)} FROM schedules ORDER BY name")
        fields = (dict(zip(_NAMES, row, strict=True)) for row in rows)
        return [Schedule(**{**row, "enabled": bool(row["enabled"])}) for row in fields]
