"""Functions in one SQLite file (`registry_schema` has the tables), changed by compare-and-set.

Owns the connection. Called straight on the event loop: a write costs tens of µs and does not wait for the disk, but for a
checkpoint every thousand pages (WAL with synchronous=NORMAL: a killed daemon loses nothing; a power cut may lose the last
deploys, never consistency). A change writes the deploys that it adds or alters, and the rest of the aggregate.

The file holds the environment of every function, sealed (`secrets`): 0600, and what is deleted or was not sealed by an
older sockd is overwritten.
"""

from __future__ import annotations

import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sockd.base.errors import StorageFull
from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.function_store import Conflict
from sockd.functions.registry.registry_schema import BadRegistry, damaged, decoded, encoded, prepare
from sockd.functions.registry.secrets import Vault

DEPLOYS = """
SELECT name, version, digest, code_bytes, handler, config, closure, initscript, published_at, created_at, image
FROM versions WHERE ? IN (name, '') ORDER BY name, version
"""


class SqliteStore:
    """A `FunctionStore`. Not to be used from another thread than the one that opened it."""

    def __init__(self, database: sqlite3.Connection, vault: Vault) -> None:
        self._database = database
        self._run = database.execute
        self._vault = vault

    @classmethod
    def open(cls, path: Path, vault: Vault) -> SqliteStore:
        """Open the file, making an empty one when there is none.

        Args:
            path: the file; SQLite keeps two more next to it.
            vault: what seals environments. If it has no key it is given one, but not while something is sealed with the
                one that is missing.
        Raises: BadRegistry when the file is damaged, foreign or of a newer sockd; BadConfig, of the key; OSError."""
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        database = sqlite3.connect(path, isolation_level=None)
        try:
            prepare(database, path.name, vault)
        except sqlite3.OperationalError as error:
            database.close()
            raise BadRegistry(f"{path.name} cannot be opened: {error}") from error
        except sqlite3.DatabaseError as error:
            database.close()
            raise damaged(path.name, str(error)) from error
        except BaseException:
            database.close()
            raise
        return cls(database, vault)

    @property
    def key_path(self) -> Path:
        return self._vault.path

    async def aclose(self) -> None:
        self._database.close()

    async def read(self) -> Sequence[FunctionAggregate]:
        return self._read("")

    async def get(self, name: str) -> FunctionAggregate:
        return next(iter(self._read(name)), FunctionAggregate(name))

    async def put(self, new: FunctionAggregate, *, expected: FunctionAggregate) -> FunctionAggregate:
        before = {record.version: record for record in expected.deploys}
        changed = [self._row(each) for each in new.deploys if before.get(each.version) != each]
        forgotten = before.keys() - {record.version for record in new.deploys}
        with self._transaction():
            self._expect(expected)
            self._run("UPDATE revisions SET last = last + 1")
            (revision,) = self._run("SELECT last FROM revisions").fetchone()
            self._run("INSERT OR REPLACE INTO functions VALUES (?, ?, ?)", (new.name, revision, encoded(new)))
            self._database.executemany(
                "INSERT OR REPLACE INTO versions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", changed
            )
            keys = [(new.name, version) for version in forgotten]
            self._database.executemany("DELETE FROM versions WHERE name = ? AND version = ?", keys)
        return replace(new, revision=revision)

    async def remove(self, expected: FunctionAggregate) -> None:
        with self._transaction():
            self._expect(expected)
            self._run("DELETE FROM functions WHERE name = ?", (expected.name,))
            self._run("DELETE FROM versions WHERE name = ?", (expected.name,))

    def _expect(self, expected: FunctionAggregate) -> None:
        row = self._run("SELECT revision FROM functions WHERE name = ?", (expected.name,)).fetchone()
        if (row[0] if row else 0) != expected.revision:
            raise Conflict(expected.name)

    def _read(self, name: str) -> list[FunctionAggregate]:
        """Args: name: of one function; empty: all."""
        deploys = defaultdict(list)
        for row in self._run(DEPLOYS, (name,)):
            record = FunctionRecord(*row)
            deploys[record.name].append(replace(record, config=self._vault.open(record.name, record.config)))
        rows = self._run("SELECT name, revision, value FROM functions WHERE ? IN (name, '') ORDER BY name", (name,))
        return [
            replace(decoded(value), revision=revision, deploys=tuple(deploys[key])) for key, revision, value in rows
        ]

    def _row(self, record: FunctionRecord) -> tuple[object, ...]:
        return (
            record.name,
            record.version,
            record.digest,
            record.code_bytes,
            record.handler,
            self._vault.seal(record.name, record.config),
            record.closure,
            record.published_at,
            record.initscript,
            record.created_at,
            record.image,
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._run("BEGIN IMMEDIATE")
        try:
            yield
            self._run("COMMIT")
        except BaseException as error:
            if self._database.in_transaction:  # SQLite itself rolls back when the disk is full
                self._run("ROLLBACK")
            if isinstance(error, sqlite3.Error) and error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise StorageFull from error
            raise
