"""Provisions: for which versions and aliases sandboxes are to be kept initialized, and how many.

Owns its table; the connection is the registry's. The sandboxes themselves are `provisioned`'s.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass

from sockd.registry.registry_schema import Transaction

COLUMNS = "SELECT name, qualifier, wanted, updated_at FROM provisions "


@dataclass(frozen=True, slots=True)
class Provision:
    """One wish."""

    name: str
    qualifier: str
    """A published number or an alias."""
    wanted: int
    updated_at: float
    """Unix time."""


class Provisions:
    """Those of all functions."""

    def __init__(self, database: sqlite3.Connection, transaction: Transaction) -> None:
        self._run = database.execute
        self._transaction = transaction

    def put(self, name: str, qualifier: str, wanted: int) -> Provision:
        """Add it, or change it. Raises: StorageFull."""
        provision = Provision(name, qualifier, wanted, time.time())
        with self._transaction():
            row = (name, qualifier, wanted, provision.updated_at)
            self._run("INSERT OR REPLACE INTO provisions VALUES (?, ?, ?, ?)", row)
        return provision

    def get(self, name: str, qualifier: str) -> Provision | None:
        row = self._run(COLUMNS + "WHERE name = ? AND qualifier = ?", (name, qualifier)).fetchone()
        return Provision(*row) if row else None

    def list(self, name: str | None = None) -> list[Provision]:
        """Those of one function, or all, by function and qualifier."""
        rows = self._run(COLUMNS + "WHERE ? IS NULL OR name = ? ORDER BY name, qualifier", (name, name))
        return [Provision(*row) for row in rows]

    def delete(self, name: str, qualifier: str) -> None:
        """Nothing happens if there is none. Raises: StorageFull."""
        with self._transaction():
            self._run("DELETE FROM provisions WHERE name = ? AND qualifier = ?", (name, qualifier))
