"""The event store: what was accepted to run later, and what became of it, in one SQLite file.

    events     accepted and not over: function, payload, how often it was tried, when it is due
    dead       dead letters: events that ended without success, and nobody had asked for them
    accepted   ids that SDKs keep over their retries, for a few minutes
    configs, schedules   see `event_configs` and `schedule_table`

Owns the file, 0600, and knows nothing of time or of functions. An event is in exactly one of `events` and `dead`, and
moves in one transaction. Methods do not commit: whoever calls them does, many at a time (`store_thread`).

WAL: what was committed survives the process's death. With synchronous=NORMAL a power cut may take the last commits.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import msgspec

from sockd.errors import SockdError
from sockd.lambdas.event_configs import ConfigTable
from sockd.lambdas.schedule_table import ScheduleTable

SCHEMA_VERSION = 1
_EVENT = """
    seq INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    function TEXT NOT NULL,
    qualifier TEXT NOT NULL,
    source TEXT NOT NULL,
    hops INTEGER NOT NULL,
    accepted_at REAL NOT NULL,
    due_at REAL NOT NULL,
    attempts INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    throttles INTEGER NOT NULL,
    size INTEGER NOT NULL,
    trace TEXT NOT NULL,
"""
SCHEMA = f"""
CREATE TABLE events ({_EVENT}
    payload BLOB NOT NULL
);
CREATE TABLE dead ({_EVENT}
    died_at REAL NOT NULL,
    reason TEXT NOT NULL,
    error_type TEXT NOT NULL,
    error TEXT NOT NULL,
    payload BLOB NOT NULL
);
CREATE TABLE dead_total (count INTEGER NOT NULL, size INTEGER NOT NULL);
INSERT INTO dead_total VALUES (0, 0);
CREATE TRIGGER dead_came AFTER INSERT ON dead BEGIN
    UPDATE dead_total SET count = count + 1, size = size + new.size;
END;
CREATE TRIGGER dead_went AFTER DELETE ON dead BEGIN
    UPDATE dead_total SET count = count - 1, size = size - old.size;
END;
CREATE TABLE accepted (key BLOB PRIMARY KEY, id BLOB NOT NULL, at REAL NOT NULL);
CREATE INDEX accepted_at ON accepted (at);
{ConfigTable.SCHEMA}
{ScheduleTable.SCHEMA}
"""
_COLUMNS = "seq, id, function, qualifier, source, hops, accepted_at, due_at, attempts, failures, throttles, size, trace"
_DEAD_COLUMNS = f"{_COLUMNS}, died_at, reason, error_type, error"
_MAX_ERROR_CHARS = 2000
SCHEDULE = "schedule:"
"""What the source of an event begins with that a schedule made."""


class BadEventStore(SockdError):
    """The file cannot be used; the daemon does not start. The message says what to do."""


class Event(msgspec.Struct):
    """An event without its payload."""

    seq: int
    """Its place in the file."""
    id: bytes
    """16 bytes, the request id of all its attempts."""
    function: str
    qualifier: str
    source: str
    """Where it came from: aws, run, cli, destination, schedule:NAME."""
    hops: int
    """Destinations that it came through."""
    accepted_at: float
    """Unix time."""
    due_at: float
    attempts: int
    """Those that are over."""
    failures: int
    """Of them, errors of the function; and those that found no place."""
    throttles: int
    size: int
    """Bytes of its payload."""
    trace: str = ""
    """The trace that it is a part of: `traceparent`, and behind a space `tracestate`."""


class DeadLetter(Event):
    """An event that ended without success."""

    died_at: float = 0.0
    reason: str = ""
    error_type: str = ""
    error: str = ""


class EventStore:
    """The open file. Used by one thread at a time; every method is to be called within a transaction."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
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
            _prepare(database, path.name, synchronous)
        except sqlite3.DatabaseError as error:
            database.close()
            raise _damaged(path.name, str(error)) from error
        except BaseException:
            database.close()
            raise
        return cls(database)

    def close(self) -> None:
        self.database.close()

    # -- events

    def add(self, event: Event, payload: bytes) -> int:
        """Keep an event; `seq` is given here, and returned."""
        values = (*msgspec.structs.astuple(event)[1:], payload)
        marks = ", ".join("?" * len(values))
        columns = f"{_COLUMNS.removeprefix('seq, ')}, payload"
        return self.database.execute(f"INSERT INTO events ({columns}) VALUES ({marks})", values).lastrowid or 0

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
        return [Event(*row) for row in self.database.execute(f"SELECT {_COLUMNS} FROM events ORDER BY seq")]

    def payload(self, seq: int) -> bytes | None:
        """The payload of an event; None: it is not there any more."""
        row = self.database.execute("SELECT payload FROM events WHERE seq = ?", (seq,)).fetchone()
        return row[0] if row else None

    def note(self, event: Event) -> None:
        """Keep what has changed of an event: when it is due, how often it was tried."""
        self.database.execute(
            "UPDATE events SET due_at = ?, attempts = ?, failures = ?, throttles = ? WHERE seq = ?",
            (event.due_at, event.attempts, event.failures, event.throttles, event.seq),
        )

    def remove(self, seq: int) -> None:
        """Forget an event that is over."""
        self.database.execute("DELETE FROM events WHERE seq = ?", (seq,))

    # -- dead letters

    def bury(self, event: Event, now: float, reason: str, error_type: str = "", error: str = "") -> None:
        """Make a dead letter of an event; one that is gone stays gone."""
        self.note(event)
        self._bury("seq = ?", (event.seq,), (now, reason, _text(error_type), _text(error)))

    def bury_function(self, function: str, now: float, reason: str, *, but: list[int]) -> int:
        """Make dead letters of the events of a function, but for some; returns how many."""
        where = f"function = ? AND seq NOT IN ({', '.join('?' * len(but))})"
        return self._bury(where, (function, *but), (now, reason, "", ""))

    def _bury(self, where: str, values: tuple[object, ...], why: tuple[float, str, str, str]) -> int:
        run = self.database.execute
        columns = _COLUMNS.removeprefix("seq, ")
        run(
            f"INSERT INTO dead ({columns}, died_at, reason, error_type, error, payload) "
            f"SELECT {columns}, ?, ?, ?, ?, payload FROM events WHERE {where} ORDER BY seq",
            (*why, *values),
        )
        return run(f"DELETE FROM events WHERE {where}", values).rowcount

    def trim_dead(self, most: int, most_bytes: int) -> int:
        """Delete the oldest dead letters beyond the limits; returns how many."""
        dropped = 0
        while True:
            count, size = self.dead_total()
            if count <= most and size <= most_bytes:
                return dropped
            over = max(count - most, 1)
            dropped += self.database.execute(
                "DELETE FROM dead WHERE seq IN (SELECT seq FROM dead ORDER BY seq LIMIT ?)", (over,)
            ).rowcount

    def dead_total(self) -> tuple[int, int]:
        """How many dead letters there are, and the bytes of their payloads."""
        total: tuple[int, int] = self.database.execute("SELECT count, size FROM dead_total").fetchone()
        return total

    def dead(self, limit: int, function: str | None = None) -> list[DeadLetter]:
        """The newest dead letters, newest first."""
        rows = self.database.execute(
            f"SELECT {_DEAD_COLUMNS} FROM dead WHERE ? IS NULL OR function = ? ORDER BY seq DESC LIMIT ?",
            (function, function, limit),
        )
        return [DeadLetter(*row) for row in rows]

    def dead_letter(self, event_id: bytes) -> tuple[DeadLetter, bytes] | None:
        """A dead letter and its payload."""
        row = self.database.execute(f"SELECT {_DEAD_COLUMNS}, payload FROM dead WHERE id = ?", (event_id,)).fetchone()
        return (DeadLetter(*row[:-1]), row[-1]) if row else None

    def revive(self, letters: list[DeadLetter], now: float) -> list[Event]:
        """Make events of dead letters again, as if accepted now; those that are gone stay gone."""
        return [event for letter in letters if (event := self._revive(letter, now))]

    def _revive(self, letter: DeadLetter, now: float) -> Event | None:
        row = self.database.execute("SELECT payload FROM dead WHERE seq = ?", (letter.seq,)).fetchone()
        if row is None:
            return None
        event = Event(
            *(0, letter.id, letter.function, letter.qualifier, letter.source, 0, now, now),
            *(letter.attempts, 0, 0, letter.size, letter.trace),
        )
        self.discard(letter)
        event.seq = self.add(event, row[0])
        return event

    def discard(self, letter: DeadLetter) -> bool:
        """Delete a dead letter; returns whether it was there."""
        return self.database.execute("DELETE FROM dead WHERE seq = ?", (letter.seq,)).rowcount > 0


def _text(words: str) -> str:
    """A handler's words, as UTF-8 can hold them: lone surrogates are in no database."""
    return words[:_MAX_ERROR_CHARS].encode("utf-8", "backslashreplace").decode()


def _prepare(database: sqlite3.Connection, file_name: str, synchronous: str) -> None:
    """Checks the file, then sets how it is used. Raises: BadEventStore, sqlite3.DatabaseError."""
    (words,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if words != "ok":
        raise _damaged(file_name, words)
    (found,) = database.execute("PRAGMA user_version").fetchone()
    if found > SCHEMA_VERSION:
        raise BadEventStore(
            f"{file_name} was written by a newer sockd (schema {found}, this one knows {SCHEMA_VERSION}): "
            "start that version, or use another state directory"
        )
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(f"PRAGMA synchronous = {'FULL' if synchronous == 'full' else 'NORMAL'}")
    if found == 0:
        database.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")


def _damaged(file_name: str, words: str) -> BadEventStore:
    return BadEventStore(
        f"{file_name} is damaged ({words}). To go on without the events in it: move {file_name}, {file_name}-wal and "
        f"{file_name}-shm out of the state directory and start sockd again"
    )
