"""The event store: what was accepted to run later, and what became of it, in one SQLite file.

    events     accepted and not over: function, payload, how often it was tried, when it is due
    accepted   ids that SDKs keep over their retries, for a few minutes
    attempts, suspicions   what was running when a daemon died, see `attempt_table`
    dead, configs, schedules   see `dead_letter_table`, `event_configs` and `schedule_table`

Owns the file, 0600, and knows nothing of time or of functions. An event is in exactly one of `events` and `dead`, and
moves in one transaction. Methods do not commit: whoever calls them does, many at a time (`store_thread`).

WAL: what was committed survives the process's death. With synchronous=NORMAL a power cut may take the last commits.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from sockd.errors import SockdError
from sockd.lambdas.attempt_table import AttemptTable
from sockd.lambdas.database import add_tables, schema_of
from sockd.lambdas.dead_letter_table import COLUMNS, MOVED, NAMES, DeadLetter, DeadLetterTable
from sockd.lambdas.event import Event
from sockd.lambdas.event_configs import ConfigTable
from sockd.lambdas.schedule_table import ScheduleTable

SCHEMA_VERSION = 1
SCHEMA = f"""
CREATE TABLE events ({COLUMNS}
    payload BLOB NOT NULL
);
CREATE TABLE accepted (key BLOB PRIMARY KEY, id BLOB NOT NULL, at REAL NOT NULL);
CREATE INDEX accepted_at ON accepted (at);
{DeadLetterTable.SCHEMA}
{ConfigTable.SCHEMA}
{ScheduleTable.SCHEMA}
"""
CHECKED_BYTES = 64 << 20
"""A larger file is not read through at a start, which is to be a matter of moments."""


class BadEventStore(SockdError):
    """The file cannot be used; the daemon does not start. The message says what to do."""


class EventStore:
    """The open file. Used by one thread at a time; every method is to be called within a transaction."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        self.attempts = AttemptTable(database)
        self.dead = DeadLetterTable(database)
        self.configs = ConfigTable(database)
        self.schedules = ScheduleTable(database)

    @classmethod
    def open(cls, path: Path, *, synchronous: str = "normal") -> EventStore:
        """The file, made if there is none.

        Args: synchronous: "full" makes each commit wait for the disk.
        Raises: BadEventStore; OSError."""
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        # Opened by the daemon's thread, used by the store's.
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            _prepare(database, path.name, path.stat().st_size, synchronous)
        except sqlite3.DatabaseError as error:
            database.close()
            raise _damaged(path.name, str(error)) from error
        except BaseException:
            database.close()
            raise
        return cls(database)

    def close(self) -> None:
        self.database.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A block whose statements all happen or none; before the store has a thread. Raises: sqlite3.Error."""
        self.database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.database.execute("COMMIT")
        except BaseException:
            if self.database.in_transaction:
                self.database.execute("ROLLBACK")
            raise

    # -- events

    def add(self, event: Event, payload: bytes) -> int:
        """Keep an event; `seq` is given here, and returned."""
        values = (*msgspec.structs.astuple(event)[1:], payload)
        marks = ", ".join("?" * len(values))
        run = self.database.execute
        return run(f"INSERT INTO events ({MOVED}, payload) VALUES ({marks})", values).lastrowid or 0

    def known(self, key: bytes, since: float) -> bytes | None:
        """The id of the event that this key was accepted as, if that was after `since`."""
        row = self.database.execute("SELECT id FROM accepted WHERE key = ? AND at >= ?", (key, since)).fetchone()
        return row[0] if row else None

    def remember(self, key: bytes, event_id: bytes, now: float, *, since: float, most: int) -> None:
        """Note what a key was accepted as; forget what was noted before `since`, and the oldest beyond `most`."""
        run = self.database.execute
        added = run("INSERT OR REPLACE INTO accepted VALUES (?, ?, ?)", (key, event_id, now)).lastrowid or 0
        run("DELETE FROM accepted WHERE at < ? OR rowid <= ?", (since, added - most))

    def waiting(self) -> list[Event]:
        """All events, oldest first."""
        return [Event(*row) for row in self.database.execute(f"SELECT {NAMES} FROM events ORDER BY seq")]

    def payload(self, seq: int) -> bytes | None:
        """The payload of an event; None: it is not there any more."""
        row = self.database.execute("SELECT payload FROM events WHERE seq = ?", (seq,)).fetchone()
        return row[0] if row else None

    def note(self, event: Event) -> None:
        """Keep what has changed of an event whose attempt is over: when it is due, how often it was tried."""
        self.attempts.end(event.seq)
        self.database.execute(
            "UPDATE events SET due_at = ?, attempts = ?, failures = ?, throttles = ? WHERE seq = ?",
            (event.due_at, event.attempts, event.failures, event.throttles, event.seq),
        )

    def remove(self, seq: int) -> None:
        """Forget an event that is over."""
        self.database.execute("DELETE FROM events WHERE seq = ?", (seq,))

    # -- dead letters

    def bury(self, event: Event, now: float, reason: str, error_type: str = "", error: str = "") -> None:
        """Make a dead letter of an event, with what has changed of it; one that is gone stays gone."""
        self.note(event)
        self.dead.bury(event.seq, now, reason, error_type, error)

    def revive(self, letters: list[DeadLetter], now: float) -> list[Event]:
        """Make events of dead letters again, as if accepted now; those that are gone stay gone."""
        return [event for letter in letters if (event := self._revive(letter, now))]

    def _revive(self, letter: DeadLetter, now: float) -> Event | None:
        payload = self.dead.payload(letter)
        if payload is None:
            return None
        event = Event(
            *(0, letter.id, letter.function, letter.qualifier, letter.source, 0, now, now),
            *(letter.attempts, 0, 0, letter.size, letter.trace),
        )
        self.dead.discard(letter)
        event.seq = self.add(event, payload)
        return event


def _prepare(database: sqlite3.Connection, file_name: str, size_bytes: int, synchronous: str) -> None:
    """Checks the file, then sets how it is used. Raises: BadEventStore, sqlite3.DatabaseError."""
    if size_bytes <= CHECKED_BYTES:
        (words,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if words != "ok":
            raise _damaged(file_name, words)
    found = schema_of(database, file_name, SCHEMA_VERSION, BadEventStore)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(f"PRAGMA synchronous = {'FULL' if synchronous == 'full' else 'NORMAL'}")
    if found == 0:
        add_tables(database, SCHEMA, SCHEMA_VERSION)
    database.executescript(AttemptTable.SCHEMA)


def _damaged(file_name: str, words: str) -> BadEventStore:
    return BadEventStore(
        f"{file_name} is damaged ({words}). To go on without the events in it: move {file_name}, {file_name}-wal and "
        f"{file_name}-shm out of the state directory and start sockd again"
    )
