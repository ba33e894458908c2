"""The event store: what was accepted to run later, and what became of it, in one SQLite file.

    events     accepted and not over: function, how often it was tried, when it is due
    accepted   ids that SDKs keep over their retries, for a few minutes
    bodies, dead, configs, schedules   see `event_bodies`, `dead_letter_table`, `event_configs` and `schedule_table`
    attempts, suspicions   what was running when a daemon died, see `attempt_table`

Owns the file, 0600, and knows nothing of time or of functions. An event is in exactly one of `events` and `dead`, and moves in
one transaction. Methods do not commit: the caller commits, many at a time (`store_thread`). The pages that deleted bodies leave
are given back to the file system by `tidy`, a few at a time.

WAL: what was committed survives the process's death. With synchronous=NORMAL a power cut may take the last commits.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import msgspec

from sockd.base.errors import SockdError
from sockd.base.sqlite.database import schema_of
from sockd.events import event_schema
from sockd.events.attempt_table import AttemptTable
from sockd.events.dead_letter_table import MOVED, NAMES, DeadLetter, DeadLetterTable
from sockd.events.event import Event
from sockd.events.event_bodies import BodyTable
from sockd.events.event_configs import ConfigTable
from sockd.events.schedules.schedule_table import ScheduleTable

CHECKED_BYTES = 64 << 20
"""A larger file is not read through at a start, which is to be a matter of moments."""
SPARE_PAGES = 1024
"""Free pages that the file keeps for what comes next: 4 MB."""
PAGES_AT_ONCE = 256
"""Given back in one step, which takes 15 ms."""
WAL_BYTES = 4 << 20
"""The write-ahead log is cut to this when it begins anew."""


class BadEventStore(SockdError):
    """The file cannot be used; the daemon does not start. The message says what to do."""


class EventStore:
    """The open file. Used by one thread at a time; every method is to be called within a transaction."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        self.bodies = BodyTable(database)
        self.attempts = AttemptTable(database)
        self.dead = DeadLetterTable(database, self.bodies)
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

    def tidy(self) -> bool:
        """Give some free pages back to the file system; outside of a transaction. Returns whether there are more."""
        run = self.database.execute
        (free,) = run("PRAGMA freelist_count").fetchone()
        (mode,) = run("PRAGMA auto_vacuum").fetchone()
        if free <= SPARE_PAGES or mode != event_schema.INCREMENTAL:
            return False
        # `execute` would stop after the first page.
        self.database.executescript(f"PRAGMA incremental_vacuum({min(free - SPARE_PAGES, PAGES_AT_ONCE)})")
        if free - PAGES_AT_ONCE > SPARE_PAGES:
            return True
        run("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return False

    # -- events

    def add(self, event: Event, payload: bytes) -> int:
        """Keep an event; `seq` is given here, and returned."""
        self.bodies.add(event.id, payload)
        return self._insert(event)

    def _insert(self, event: Event) -> int:
        values = msgspec.structs.astuple(event)[1:]
        marks = ", ".join("?" * len(values))
        return self.database.execute(f"INSERT INTO events ({MOVED}) VALUES ({marks})", values).lastrowid or 0

    def known(self, key: bytes, since: float) -> bytes | None:
        """The id of the event that this key was accepted as, if that was after `since`."""
        row = self.database.execute("SELECT id FROM accepted WHERE key = ? AND at >= ?", (key, since)).fetchone()
        return row[0] if row else None

    def remember(self, key: bytes, event_id: bytes, now: float, *, since: float, most: int) -> None:
        """Record what a key was accepted as; forget what was recorded before `since`, and the oldest beyond `most`."""
        run = self.database.execute
        added = run("INSERT OR REPLACE INTO accepted VALUES (?, ?, ?)", (key, event_id, now)).lastrowid or 0
        run("DELETE FROM accepted WHERE at < ? OR rowid <= ?", (since, added - most))

    def waiting(self) -> list[Event]:
        """All events, oldest first."""
        return [Event(*row) for row in self.database.execute(f"SELECT {NAMES} FROM events ORDER BY seq")]

    def payload(self, seq: int) -> bytes | None:
        """The payload of an event; None: it is not there any more."""
        row = self.database.execute("SELECT id FROM events WHERE seq = ?", (seq,)).fetchone()
        return self.bodies.get(row[0]) if row else None

    def note(self, event: Event) -> None:
        """Keep what has changed of an event whose attempt is over: when it is due, how often it was tried."""
        self.attempts.end(event.seq)
        self.database.execute(
            "UPDATE events SET due_at = ?, attempts = ?, failures = ?, throttles = ? WHERE seq = ?",
            (event.due_at, event.attempts, event.failures, event.throttles, event.seq),
        )

    def remove(self, seq: int) -> None:
        """Forget an event that is over."""
        run = self.database.execute
        run("DELETE FROM bodies WHERE id = (SELECT id FROM events WHERE seq = ?)", (seq,))
        run("DELETE FROM events WHERE seq = ?", (seq,))

    # -- dead letters

    def bury(self, event: Event, now: float, reason: str, error_type: str = "", error: str = "") -> None:
        """Make a dead letter of an event, with what has changed of it; one that is gone stays gone."""
        self.note(event)
        self.dead.bury(event.seq, now, reason, error_type, error)

    def revive(self, letters: list[DeadLetter], now: float) -> list[Event]:
        """Make events of dead letters again, as if accepted now; those that are gone stay gone."""
        return [event for letter in letters if (event := self._revive(letter, now))]

    def _revive(self, letter: DeadLetter, now: float) -> Event | None:
        if not self.dead.take(letter):
            return None
        event = Event(
            *(0, letter.id, letter.function, letter.qualifier, letter.source, 0, now, now),
            *(letter.attempts, 0, 0, letter.size, letter.trace),
        )
        event.seq = self._insert(event)
        return event


def _prepare(database: sqlite3.Connection, file_name: str, size_bytes: int, synchronous: str) -> None:
    """Checks the file, then sets how it is used. Raises: BadEventStore, sqlite3.DatabaseError."""
    if size_bytes <= CHECKED_BYTES:
        (words,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if words != "ok":
            raise _damaged(file_name, words)
    found = schema_of(database, file_name, event_schema.VERSION, BadEventStore)
    if not found:  # before the first page is written, and without that of a file's start
        database.execute(f"PRAGMA auto_vacuum = {event_schema.INCREMENTAL}")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(f"PRAGMA synchronous = {'FULL' if synchronous == 'full' else 'NORMAL'}")
    database.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
    # Some builds of SQLite overwrite with zeros what is deleted: a body of 1 MB is 256 pages, written for nothing, since
    # the pages go back to the file system.
    database.execute("PRAGMA secure_delete = OFF")
    if found:
        event_schema.migrate(database, found)
    else:
        event_schema.make(database)
    database.executescript(AttemptTable.SCHEMA)


def _damaged(file_name: str, words: str) -> BadEventStore:
    return BadEventStore(
        f"{file_name} is damaged ({words}). To go on without the events in it: move {file_name}, {file_name}-wal and "
        f"{file_name}-shm out of the state directory and start sockd again"
    )
