"""Bodies of events: what each says, in a table of its own, from the moment it is accepted until it is not needed any more.

Owns the rows of a table; its transactions are the event store's. An event that becomes a dead letter, or is revived,
leaves its body where it is: only its other columns move.
"""

from __future__ import annotations

import sqlite3
from typing import ClassVar


class BodyTable:
    """By the id of the event, which is in `events` or in `dead`."""

    SCHEMA: ClassVar = """
CREATE TABLE bodies (id BLOB PRIMARY KEY, body BLOB NOT NULL);
"""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def add(self, event_id: bytes, body: bytes) -> None:
        self._database.execute("INSERT INTO bodies VALUES (?, ?)", (event_id, body))

    def get(self, event_id: bytes) -> bytes | None:
        """None: it is gone."""
        row = self._database.execute("SELECT body FROM bodies WHERE id = ?", (event_id,)).fetchone()
        return row[0] if row else None

    def remove(self, event_id: bytes) -> None:
        self._database.execute("DELETE FROM bodies WHERE id = ?", (event_id,))
