"""Dead letters as rows: events that ended without success and had no destination for failures.

Owns the rows of a table, and their sum, which triggers keep; its transactions are the event store's.
"""

from __future__ import annotations

import sqlite3
from typing import ClassVar

from sockd.base.errors import FunctionFailed, SockdError
from sockd.events.event import Event
from sockd.events.event_bodies import BodyTable

COLUMNS = """
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
"""What events and dead letters have in common, in SQL."""
NAMES = ", ".join(Event.__struct_fields__)
MOVED = NAMES.removeprefix("seq, ")
"""All of them that a row takes along into another table."""
STACK_FOLLOWS = "\nTraceback (most recent call last):\n"
"""Between an error's message and its frames, which are one text in the table."""
_MAX_ERROR_CHARS = 2000
_MAX_STACK_CHARS = 4000


class DeadLetter(Event):
    """An event that ended without success."""

    died_at: float = 0.0
    reason: str = ""
    error_type: str = ""
    error: str = ""


class DeadLetterTable:
    """By id, and in the order in which they came. Their bodies are in `bodies`, as those of events are."""

    SCHEMA: ClassVar = f"""
CREATE TABLE dead ({COLUMNS}
    died_at REAL NOT NULL,
    reason TEXT NOT NULL,
    error_type TEXT NOT NULL,
    error TEXT NOT NULL
);
CREATE TABLE dead_total (count INTEGER NOT NULL, size INTEGER NOT NULL);
INSERT INTO dead_total VALUES (0, 0);
CREATE TRIGGER dead_came AFTER INSERT ON dead BEGIN
    UPDATE dead_total SET count = count + 1, size = size + new.size;
END;
CREATE TRIGGER dead_went AFTER DELETE ON dead BEGIN
    UPDATE dead_total SET count = count - 1, size = size - old.size;
END;
"""

    def __init__(self, database: sqlite3.Connection, bodies: BodyTable) -> None:
        """Args: bodies: of the same database."""
        self._database = database
        self._bodies = bodies

    def bury(self, seq: int, now: float, reason: str, error_type: str = "", error: str = "") -> None:
        """Take an event from the others; one that is gone stays gone."""
        self._bury("seq = ?", (seq,), (now, reason, storable(error_type), storable(error)))

    def bury_function(self, function: str, now: float, reason: str, *, but: list[int]) -> int:
        """Take all events of a function, but for some; returns how many."""
        where = f"function = ? AND seq NOT IN ({', '.join('?' * len(but))})"
        return self._bury(where, (function, *but), (now, reason, "", ""))

    def _bury(self, where: str, values: tuple[object, ...], why: tuple[float, str, str, str]) -> int:
        run = self._database.execute
        run(
            f"INSERT INTO dead ({MOVED}, died_at, reason, error_type, error) "
            f"SELECT {MOVED}, ?, ?, ?, ? FROM events WHERE {where} ORDER BY seq",
            (*why, *values),
        )
        return run(f"DELETE FROM events WHERE {where}", values).rowcount

    def trim(self, most: int, most_bytes: int) -> int:
        """Delete the oldest beyond the limits; returns how many."""
        dropped = 0
        while True:
            count, size = self.total()
            if count <= most and size <= most_bytes:
                return dropped
            over = max(count - most, 1)
            run, oldest = self._database.execute, "FROM dead ORDER BY seq LIMIT ?"
            run(f"DELETE FROM bodies WHERE id IN (SELECT id {oldest})", (over,))
            dropped += run(f"DELETE FROM dead WHERE seq IN (SELECT seq {oldest})", (over,)).rowcount

    def total(self) -> tuple[int, int]:
        """How many there are, and the bytes of their payloads."""
        total: tuple[int, int] = self._database.execute("SELECT count, size FROM dead_total").fetchone()
        return total

    def last(self, limit: int, function: str | None = None) -> list[DeadLetter]:
        """The newest, newest first."""
        rows = self._database.execute(
            f"SELECT {_DEAD_NAMES} FROM dead WHERE ? IS NULL OR function = ? ORDER BY seq DESC LIMIT ?",
            (function, function, limit),
        )
        return [DeadLetter(*row) for row in rows]

    def get(self, event_id: bytes) -> DeadLetter | None:
        """By the id of its event."""
        row = self._database.execute(f"SELECT {_DEAD_NAMES} FROM dead WHERE id = ?", (event_id,)).fetchone()
        return DeadLetter(*row) if row else None

    def payload(self, letter: DeadLetter) -> bytes | None:
        """What its event said; None: it is gone."""
        return self._bodies.get(letter.id)

    def take(self, letter: DeadLetter) -> bool:
        """Delete one, but not its body; returns whether it was there."""
        return self._database.execute("DELETE FROM dead WHERE seq = ?", (letter.seq,)).rowcount > 0

    def discard(self, letter: DeadLetter) -> bool:
        """Delete one; returns whether it was there."""
        is_there = self.take(letter)
        if is_there:
            self._bodies.remove(letter.id)
        return is_there


_DEAD_NAMES = ", ".join(DeadLetter.__struct_fields__)


def words_of(error: SockdError) -> str:
    """An error as it is kept: its message, and its innermost frames."""
    message = error.message[:_MAX_ERROR_CHARS]
    stack = "".join(error.stack_trace) if isinstance(error, FunctionFailed) else ""
    return f"{message}{STACK_FOLLOWS}{stack[-_MAX_STACK_CHARS:]}" if stack else message


def storable(words: str) -> str:
    """Return a handler's text as every database holds it: without lone surrogates and NULs."""
    most = _MAX_ERROR_CHARS + len(STACK_FOLLOWS) + _MAX_STACK_CHARS
    return words.replace("\0", "\\0")[:most].encode("utf-8", "backslashreplace").decode()
