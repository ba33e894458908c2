"""The tables of the event store's file, and how a file of an older sockd is brought up to date.

    1   bodies were a column of `events` and of `dead`, and the file never got smaller
    2   bodies have a table of their own; free pages are given back to the file system in steps (auto_vacuum)

Owns nothing. A migration is one transaction; the file is rewritten after it, because SQLite changes auto_vacuum no other way.
"""

from __future__ import annotations

import logging
import sqlite3

from sockd.base.sqlite.database import add_tables
from sockd.events.dead_letter_table import COLUMNS, NAMES, DeadLetterTable
from sockd.events.event_bodies import BodyTable
from sockd.events.event_configs import ConfigTable
from sockd.events.schedules.schedule_table import ScheduleTable

VERSION = 2
EVENTS = f"CREATE TABLE events ({COLUMNS.rstrip().rstrip(',')});"
TABLES = f"""
{EVENTS}
CREATE TABLE accepted (key BLOB PRIMARY KEY, id BLOB NOT NULL, at REAL NOT NULL);
CREATE INDEX accepted_at ON accepted (at);
{BodyTable.SCHEMA}
{DeadLetterTable.SCHEMA}
{ConfigTable.SCHEMA}
{ScheduleTable.SCHEMA}
"""
DEAD_NAMES = f"{NAMES}, died_at, reason, error_type, error"
FROM_1_TO_2 = f"""
ALTER TABLE events RENAME TO old_events;
ALTER TABLE dead RENAME TO old_dead;
DROP TRIGGER dead_came;
DROP TRIGGER dead_went;
DROP TABLE dead_total;
{EVENTS}
{BodyTable.SCHEMA}
{DeadLetterTable.SCHEMA}
INSERT INTO bodies SELECT id, payload FROM old_events;
INSERT INTO bodies SELECT id, payload FROM old_dead;
INSERT INTO events ({NAMES}) SELECT {NAMES} FROM old_events ORDER BY seq;
INSERT INTO dead ({DEAD_NAMES}) SELECT {DEAD_NAMES} FROM old_dead ORDER BY seq;
DROP TABLE old_events;
DROP TABLE old_dead;
"""
INCREMENTAL = 2
"""SQLite's number of auto_vacuum = INCREMENTAL."""

_log = logging.getLogger(__name__)


def make(database: sqlite3.Connection) -> None:
    """The tables of an empty file. To be called before anything is written, journal_mode included."""
    add_tables(database, TABLES, VERSION)


def migrate(database: sqlite3.Connection, found: int) -> None:
    """Bring a file up to date. Raises: sqlite3.Error, and nothing has changed."""
    if found == 1:
        add_tables(database, FROM_1_TO_2, VERSION)
    (mode,) = database.execute("PRAGMA auto_vacuum").fetchone()
    if mode == INCREMENTAL:
        return
    try:
        database.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
        database.execute("VACUUM")
    except sqlite3.OperationalError as error:  # it takes as much again of the disk as what is in the file
        _log.warning("events.sqlite keeps its size until a start at which it can be rewritten: %s", error)
