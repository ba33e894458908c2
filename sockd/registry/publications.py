"""Publications: deploys of a function that were given a number, 1, 2, ..., and stay as they were until they are deleted.

AWS counts what is published, we count deploys besides: a publication is a number for one deploy, whose row and code the
registry keeps as long as the publication is there. A number is used once, even if its function is deleted and made anew.

Owns its tables; the connection is the registry's.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass

from sockd.plain.errors import NoSuchVersion
from sockd.registry.registry_schema import Transaction

COLUMNS = "SELECT name, number, version, description, published_at FROM publications "


@dataclass(frozen=True, slots=True)
class Publication:
    """One published version."""

    name: str
    number: int
    version: int
    """The deploy that it is (`FunctionRecord.version`)."""
    description: str
    published_at: float
    """Unix time."""


class Publications:
    """Those of all functions."""

    def __init__(self, database: sqlite3.Connection, transaction: Transaction) -> None:
        self._run = database.execute
        self._transaction = transaction

    def add(self, name: str, version: int, description: str) -> Publication:
        """Give a deploy that the registry remembers the next number. Raises: StorageFull."""
        now = time.time()
        with self._transaction():
            self._run(
                "INSERT INTO numbers VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET last = last + 1",
                (name,),
            )
            (number,) = self._run("SELECT last FROM numbers WHERE name = ?", (name,)).fetchone()
            self._run("INSERT INTO publications VALUES (?, ?, ?, ?, ?)", (name, number, version, description, now))
        return Publication(name, number, version, description, now)

    def get(self, name: str, number: int) -> Publication:
        """Raises: NoSuchVersion."""
        row = self._run(COLUMNS + "WHERE name = ? AND number = ?", (name, number)).fetchone()
        if row is None:
            raise NoSuchVersion(name, str(number))
        return Publication(*row)

    def list(self, name: str | None = None) -> list[Publication]:
        """Those of one function, or all: by function, oldest first."""
        rows = self._run(COLUMNS + "WHERE ? IS NULL OR name = ? ORDER BY name, number", (name, name))
        return [Publication(*row) for row in rows]

    def count(self, name: str) -> int:
        """How many a function has."""
        (count,) = self._run("SELECT count(*) FROM publications WHERE name = ?", (name,)).fetchone()
        return int(count)

    def last(self, name: str) -> Publication | None:
        """The newest of a function, if it has any."""
        row = self._run(COLUMNS + "WHERE name = ? ORDER BY number DESC LIMIT 1", (name,)).fetchone()
        return Publication(*row) if row else None

    def delete(self, name: str, number: int) -> None:
        """Nothing happens if there is none. What was provisioned for it ends with it. Raises: StorageFull."""
        with self._transaction():
            self._run("DELETE FROM publications WHERE name = ? AND number = ?", (name, number))
            self._run("DELETE FROM provisions WHERE name = ? AND qualifier = ?", (name, str(number)))
