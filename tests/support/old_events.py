"""The event store's file as sockd wrote it before bodies had a table of their own (schema 1)."""

from __future__ import annotations

import sqlite3
from pathlib import Path

_COMMON = """
    seq INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, function TEXT NOT NULL, qualifier TEXT NOT NULL,
    source TEXT NOT NULL, hops INTEGER NOT NULL, accepted_at REAL NOT NULL, due_at REAL NOT NULL,
    attempts INTEGER NOT NULL, failures INTEGER NOT NULL, throttles INTEGER NOT NULL, size INTEGER NOT NULL,
    trace TEXT NOT NULL,
"""
SCHEMA_1 = f"""
CREATE TABLE events ({_COMMON} payload BLOB NOT NULL);
CREATE TABLE accepted (key BLOB PRIMARY KEY, id BLOB NOT NULL, at REAL NOT NULL);
CREATE INDEX accepted_at ON accepted (at);
CREATE TABLE dead ({_COMMON} died_at REAL NOT NULL, reason TEXT NOT NULL, error_type TEXT NOT NULL,
    error TEXT NOT NULL, payload BLOB NOT NULL);
CREATE TABLE dead_total (count INTEGER NOT NULL, size INTEGER NOT NULL);
INSERT INTO dead_total VALUES (0, 0);
CREATE TRIGGER dead_came AFTER INSERT ON dead BEGIN
    UPDATE dead_total SET count = count + 1, size = size + new.size;
END;
CREATE TRIGGER dead_went AFTER DELETE ON dead BEGIN
    UPDATE dead_total SET count = count - 1, size = size - old.size;
END;
CREATE TABLE configs (function TEXT NOT NULL, qualifier TEXT NOT NULL, max_retries INTEGER, max_age_s INTEGER,
    on_success TEXT NOT NULL, on_failure TEXT NOT NULL, modified_at REAL NOT NULL,
    PRIMARY KEY (function, qualifier)) WITHOUT ROWID;
CREATE TABLE schedules (name TEXT PRIMARY KEY, function TEXT NOT NULL, qualifier TEXT NOT NULL, expression TEXT NOT NULL,
    timezone TEXT NOT NULL, event BLOB NOT NULL, enabled INTEGER NOT NULL, created_at REAL NOT NULL,
    next_at REAL NOT NULL, last_at REAL NOT NULL) WITHOUT ROWID;
PRAGMA user_version = 1;
"""


def old_events(path: Path, payloads: list[bytes]) -> sqlite3.Connection:
    """A file of that schema: for each payload an event of `f` that waits and a dead letter."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.executescript(SCHEMA_1)
    for number, payload in enumerate(payloads):
        for table, more in (("events", ()), ("dead", (2.0, "RetriesExhausted", "ValueError", "no"))):
            event_id = bytes([table == "dead"]) + number.to_bytes(15)
            row = (number + 1, event_id, "f", "", "run", 0, 1.0, 1.0, 1, 1, 0, len(payload), "", *more, payload)
            database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    return database
