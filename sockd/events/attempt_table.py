"""Attempts under way as rows: which events a daemon was running when it died, and how often that has happened.

    attempts     event → whether an attempt is under way, and how many daemons have died during one
    suspicions   function → how many daemons have died while its events ran, and when its next one is due

Owns the rows; its transactions are the event store's. A SIGKILL of the daemon cannot be distinguished from a death that an event
has caused, so every event that was running is a suspect until it is over (`probation`).
"""

from __future__ import annotations

import sqlite3
from typing import ClassVar, NamedTuple

from sockd.base.config import EventsConfig
from sockd.events.event_policy import delay_after_death_s


class Suspect(NamedTuple):
    """An event during which daemons have died."""

    seq: int
    function: str
    deaths: int
    due_at: float
    """Unix time before which its function is not to run."""


class AttemptTable:
    """`begin` an attempt, `end` it; `recover` once when the daemon starts."""

    SCHEMA: ClassVar = """
CREATE TABLE IF NOT EXISTS attempts (seq INTEGER PRIMARY KEY, running INTEGER NOT NULL, deaths INTEGER NOT NULL);
CREATE TRIGGER IF NOT EXISTS event_went AFTER DELETE ON events BEGIN DELETE FROM attempts WHERE seq = old.seq; END;
CREATE TABLE IF NOT EXISTS suspicions (
    function TEXT PRIMARY KEY,
    deaths INTEGER NOT NULL,
    died_at REAL NOT NULL,
    due_at REAL NOT NULL
) WITHOUT ROWID;
"""
    """The schema of every file, also of one of an older sockd: it keeps the trigger's promise, and knows nothing of the
    rest."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def begin(self, seq: int) -> None:
        """An attempt of this event begins once this is committed."""
        self._database.execute(
            "INSERT INTO attempts VALUES (?, 1, 0) ON CONFLICT (seq) DO UPDATE SET running = 1", (seq,)
        )

    def end(self, seq: int) -> None:
        """The attempt is over and the event is not."""
        self._database.execute("UPDATE attempts SET running = 0 WHERE seq = ?", (seq,))

    def end_all(self) -> None:
        """The daemon ends in order: what it has cut off is no suspect."""
        self._database.execute("UPDATE attempts SET running = 0 WHERE running")

    def recover(self, now: float, config: EventsConfig) -> None:
        """Count the death of the last daemon against the events that it was running, and as an attempt of each."""
        run = self._database.execute
        functions = run("SELECT DISTINCT function FROM attempts JOIN events USING (seq) WHERE running").fetchall()
        for (function,) in functions:
            self._suspect(function, now, config)
        run("UPDATE events SET attempts = attempts + 1 WHERE seq IN (SELECT seq FROM attempts WHERE running)")
        run("UPDATE attempts SET running = 0, deaths = deaths + 1 WHERE running")

    def _suspect(self, function: str, now: float, config: EventsConfig) -> None:
        run = self._database.execute
        forget_s = 2 * config.max_death_delay_s
        run("DELETE FROM suspicions WHERE died_at < ?", (now - forget_s,))
        row = run("SELECT deaths FROM suspicions WHERE function = ?", (function,)).fetchone()
        deaths = row[0] + 1 if row else 1
        due_at = now + delay_after_death_s(deaths, config)
        run("INSERT OR REPLACE INTO suspicions VALUES (?, ?, ?, ?)", (function, deaths, now, due_at))

    def suspects(self) -> list[Suspect]:
        """All events during which a daemon has died; those whose death could not be written, too."""
        rows = self._database.execute(
            "SELECT seq, function, a.deaths + a.running, coalesce(s.due_at, 0) FROM attempts a JOIN events USING (seq) "
            "LEFT JOIN suspicions s USING (function) WHERE a.deaths + a.running > 0"
        )
        return [Suspect(*row) for row in rows]
