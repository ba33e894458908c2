"""Event-invoke-configs: how the asynchronous invocations of a function, or of one version of it, are to end.

Owns the rows of a table; its transactions are the event store's.
"""

from __future__ import annotations

import sqlite3
from typing import ClassVar, Literal

import msgspec

Side = Literal["on_success", "on_failure"]


class EventInvokeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """AWS's EventInvokeConfig; None is the worker's default, an empty destination is none."""

    function: str
    qualifier: str = "$LATEST"
    max_retries: int | None = None
    max_age_s: int | None = None
    on_success: str = ""
    """A function's name or ARN, or `directory:NAME`."""
    on_failure: str = ""
    modified_at: float = 0.0


class ConfigTable:
    """By function and qualifier."""

    SCHEMA: ClassVar = """
CREATE TABLE configs (
    function TEXT NOT NULL,
    qualifier TEXT NOT NULL,
    max_retries INTEGER,
    max_age_s INTEGER,
    on_success TEXT NOT NULL,
    on_failure TEXT NOT NULL,
    modified_at REAL NOT NULL,
    PRIMARY KEY (function, qualifier)
) WITHOUT ROWID;
"""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def put(self, config: EventInvokeConfig) -> None:
        """Instead of the one that was there."""
        values = msgspec.structs.astuple(config)
        self._database.execute("INSERT OR REPLACE INTO configs VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    def remove(self, function: str, qualifier: str) -> None:
        self._database.execute("DELETE FROM configs WHERE function = ? AND qualifier = ?", (function, qualifier))

    def remove_function(self, function: str) -> None:
        """All of a function."""
        self._database.execute("DELETE FROM configs WHERE function = ?", (function,))

    def all(self) -> list[EventInvokeConfig]:
        """Every one."""
        names = EventInvokeConfig.__struct_fields__
        rows = self._database.execute(f"SELECT {', '.join(names)} FROM configs")
        return [EventInvokeConfig(**dict(zip(names, row, strict=True))) for row in rows]
