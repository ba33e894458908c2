"""Aliases: names that lead to a published version of a function, or to two of which one gets a share of the requests.

Owns its table; the connection is the registry's.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass

from sockd.plain.errors import NoSuchVersion
from sockd.registry.registry_schema import Transaction

LATEST = "$LATEST"
"""The qualifier of what was deployed last, published or not (AWS's word)."""
NAME = re.compile(r"(?!\d+$)[A-Za-z0-9_-]{1,128}", re.ASCII)
"""Of an alias: a number would be a version."""
COLUMNS = "SELECT name, alias, version, other, weight, description, revision FROM aliases "


@dataclass(frozen=True, slots=True)
class Alias:
    """One alias."""

    name: str
    """The function."""
    alias: str
    version: str
    """A published number, or $LATEST."""
    other: str = ""
    """A published number that gets a share of the requests; empty: none does."""
    weight: float = 0.0
    """The share, in [0, 1)."""
    description: str = ""
    revision: str = ""
    """Another one for each change."""

    def pick(self, draw: float) -> str:
        """POLICY: the version that serves a request. Args: draw: in [0, 1), evenly distributed over requests."""
        return self.other if draw < self.weight else self.version

    def shares(self, count: int) -> dict[str, int]:
        """POLICY: how so many sandboxes are divided among its versions: as its requests are, none left without."""
        if not self.other or not self.weight:
            return {self.version: count}
        others = min(max(round(count * self.weight), 1), count - 1)
        return {version: share for version, share in ((self.version, count - others), (self.other, others)) if share}


class Aliases:
    """Those of all functions."""

    def __init__(self, database: sqlite3.Connection, transaction: Transaction) -> None:
        self._run = database.execute
        self._transaction = transaction

    def put(self, alias: Alias) -> None:
        """Add it, or change it. Raises: StorageFull."""
        row = (alias.name, alias.alias, alias.version, alias.other, alias.weight, alias.description, alias.revision)
        with self._transaction():
            self._run("INSERT OR REPLACE INTO aliases VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def get(self, name: str, alias: str) -> Alias:
        """Raises: NoSuchVersion."""
        row = self._run(COLUMNS + "WHERE name = ? AND alias = ?", (name, alias)).fetchone()
        if row is None:
            raise NoSuchVersion(name, alias)
        return Alias(*row)

    def list(self, name: str) -> list[Alias]:
        """Those of one function, by their names."""
        return [Alias(*row) for row in self._run(COLUMNS + "WHERE name = ? ORDER BY alias", (name,))]

    def delete(self, name: str, alias: str) -> None:
        """Nothing happens if there is none. What was provisioned for it ends with it. Raises: StorageFull."""
        with self._transaction():
            self._run("DELETE FROM aliases WHERE name = ? AND alias = ?", (name, alias))
            self._run("DELETE FROM provisions WHERE name = ? AND qualifier = ?", (name, alias))


def number_of(qualifier: str) -> int | None:
    """The published number that a qualifier is; None: it is another word."""
    is_number = qualifier.isascii() and qualifier.isdigit() and len(qualifier) <= 18  # what SQLite can hold
    return int(qualifier) if is_number else None
