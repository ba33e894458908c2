"""The registry: which functions exist, and which deploy of each is the current one.

`registry_schema` has the tables. What was published of a function, its aliases and what is kept initialized for them are
nouns of their own in the same file: `publications`, `aliases`, `provisions`.

Owns one SQLite file. Called straight on the event loop: a read or a write costs tens of µs and does not wait for the
disk, but for a checkpoint every thousand pages (WAL with synchronous=NORMAL: a killed daemon loses nothing; a power cut
may lose the last deploys, never consistency). Settings and packages are JSON that this file does not look into.

The file holds the environment of every function, sealed (`secrets`): 0600, and what is deleted or was not sealed by an
older sockd is overwritten.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sockd.plain.errors import NoSuchFunction, StorageFull
from sockd.registry.aliases import Aliases
from sockd.registry.provisions import Provisions
from sockd.registry.publications import Publication, Publications
from sockd.registry.registry_schema import BadRegistry, damaged, prepare
from sockd.registry.secrets import Vault

SELECT = """
SELECT name, version, digest, code_bytes, handler, config, closure, initscript, published_at, created_at, updated_at
FROM functions JOIN versions USING (name{current})
"""
CURRENT = SELECT.format(current=", version")
INSERT = """
INSERT INTO versions (name, version, digest, code_bytes, handler, config, closure, initscript, published_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
EVERY = SELECT.format(current="").replace("name, version,", "name, versions.version,")


@dataclass(frozen=True, slots=True)
class FunctionRecord:
    """One version of one function, as it was deployed."""

    name: str
    version: int
    """1 for the first deploy of a name; a changed deploy counts one up. (What is published is numbered besides.)"""
    digest: str
    code_bytes: int
    handler: str
    """"module:attr"."""
    config: str
    """JSON of a FunctionConfig, opened if the vault has the key."""
    closure: str
    """JSON of a Closure."""
    initscript: str
    """Digest of its WebAssembly module; empty: it has none."""
    published_at: float
    """Unix time of this version."""
    created_at: float
    """Unix time of the function's first version."""
    updated_at: float
    """Unix time of the function's current version."""


class Registry:
    """The open file. Not to be used from another thread than the one that opened it."""

    def __init__(self, database: sqlite3.Connection, vault: Vault, *, keep_versions: int) -> None:
        self._database = database
        self._vault = vault
        self._keep_versions = keep_versions
        self.publications = Publications(database, self._transaction)
        self.aliases = Aliases(database, self._transaction)
        self.provisions = Provisions(database, self._transaction)

    @classmethod
    def open(cls, path: Path, vault: Vault | None = None, *, keep_versions: int = 5) -> Registry:
        """Opens the registry, making an empty one when there is none.

        Args:
            path: the file; SQLite keeps two more beside it.
            vault: what seals environments; None: one with its key beside the file. If it has no key it is given one, but
                not while something is sealed with the one that is missing.
            keep_versions: deploys of each function that are remembered, the current one included; at least 1. What is
                published is remembered besides.
        Raises: BadRegistry when the file is damaged, foreign or of a newer sockd; BadConfig, of the key; OSError."""
        vault = vault or Vault.at(path.parent / "secret.key")
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
        return cls(database, vault, keep_versions=keep_versions)

    @property
    def key_path(self) -> Path:
        """The file of the key that environments are sealed with."""
        return self._vault.path

    def close(self) -> None:
        self._database.close()

    def put(
        self, name: str, *, digest: str, code_bytes: int, handler: str, config: str, closure: str, initscript: str = ""
    ) -> FunctionRecord:
        """Makes this the current version of a function, at once and for all readers; forgets the oldest ones.

        Deploying what is current already changes nothing and returns the current record.

        Raises: StorageFull; SecretsLocked when there is an environment and no key."""
        content = (digest, code_bytes, handler, config, closure, initscript)
        now = time.time()
        sealed = self._vault.seal(name, config)
        with self._transaction():
            old = self._current(name)
            if old and (old.digest, old.code_bytes, old.handler, old.config, old.closure, old.initscript) == content:
                return old
            version = old.version + 1 if old else 1
            created_at = old.created_at if old else now
            run = self._database.execute
            run(
                "INSERT INTO functions VALUES (?, ?, ?, ?) "
                "ON CONFLICT (name) DO UPDATE SET version = excluded.version, updated_at = excluded.updated_at",
                (name, version, created_at, now),
            )
            run(INSERT, (name, version, digest, code_bytes, handler, sealed, closure, initscript, now))
            self._forget_old(name, version)
        return FunctionRecord(name, version, *content, published_at=now, created_at=created_at, updated_at=now)

    def amend(self, record: FunctionRecord, config: str) -> FunctionRecord:
        """Other settings for a recorded version. Raises: StorageFull; SecretsLocked as `put`."""
        sealed = self._vault.seal(record.name, config)
        with self._transaction():
            self._database.execute(
                "UPDATE versions SET config = ? WHERE name = ? AND version = ?", (sealed, record.name, record.version)
            )
        return replace(record, config=config)

    def get(self, name: str) -> FunctionRecord:
        """The current version of a function. Raises NoSuchFunction."""
        record = self._current(name)
        if record is None:
            raise NoSuchFunction(f"no function {name!r}")
        return record

    def created_at(self, name: str) -> float | None:
        """When a function of this name was first deployed, after the last one was removed; None: there is none."""
        row = self._database.execute("SELECT created_at FROM functions WHERE name = ?", (name,)).fetchone()
        return float(row[0]) if row else None

    def list(self) -> list[FunctionRecord]:
        """The current version of every function, by name."""
        return [self._record(row) for row in self._database.execute(CURRENT + "ORDER BY name")]

    def versions(self, name: str) -> Sequence[FunctionRecord]:
        """The versions of a function that are remembered, newest first. Raises NoSuchFunction."""
        rows = self._database.execute(EVERY + "WHERE name = ? ORDER BY versions.version DESC", (name,))
        records = [self._record(row) for row in rows]
        if not records:
            raise NoSuchFunction(f"no function {name!r}")
        return records

    def version(self, name: str, version: int) -> FunctionRecord:
        """A deploy that is remembered. Raises NoSuchFunction."""
        row = self._database.execute(EVERY + "WHERE name = ? AND versions.version = ?", (name, version)).fetchone()
        if row is None:
            raise NoSuchFunction(f"no deploy {version} of {name!r} is remembered")
        return self._record(row)

    def published(self, name: str, number: int) -> tuple[Publication, FunctionRecord]:
        """A published version, and the deploy that it is. Raises: NoSuchVersion."""
        publication = self.publications.get(name, number)
        return publication, self.version(name, publication.version)

    def published_closures(self) -> Sequence[tuple[str, str]]:
        """The functions that have published anything, each with the packages, as JSON, of what it has published."""
        return self._database.execute(
            "SELECT DISTINCT name, closure FROM publications JOIN versions USING (name, version)"
        ).fetchall()

    def unpublish(self, name: str, number: int) -> None:
        """Forget a published version, and its deploy if that is old. Raises: StorageFull."""
        self.publications.delete(name, number)
        current = self._current(name)
        if current is not None:
            with self._transaction():
                self._forget_old(name, current.version)

    def delete(self, name: str) -> None:
        """Forgets a function and all its versions. Raises NoSuchFunction, StorageFull."""
        with self._transaction():
            if not self._database.execute("DELETE FROM functions WHERE name = ?", (name,)).rowcount:
                raise NoSuchFunction(f"no function {name!r}")

    def digests(self) -> set[str]:
        """The code that any remembered version needs; the rest may go."""
        return {digest for (digest,) in self._database.execute("SELECT DISTINCT digest FROM versions")}

    def initscripts(self) -> set[str]:
        """The WebAssembly modules that any remembered version needs."""
        return {digest for (digest,) in self._database.execute("SELECT DISTINCT initscript FROM versions") if digest}

    def closures(self) -> set[str]:
        """The packages, as JSON, that any remembered version needs."""
        return {closure for (closure,) in self._database.execute("SELECT DISTINCT closure FROM versions")}

    def _current(self, name: str) -> FunctionRecord | None:
        row = self._database.execute(CURRENT + "WHERE name = ?", (name,)).fetchone()
        return self._record(row) if row else None

    def _record(self, row: Sequence[Any]) -> FunctionRecord:
        record = FunctionRecord(*row)
        return replace(record, config=self._vault.open(record.name, record.config))

    def _forget_old(self, name: str, current: int) -> None:
        self._database.execute(
            "DELETE FROM versions WHERE name = ? AND version <= ? AND version NOT IN "
            "(SELECT p.version FROM publications AS p WHERE p.name = versions.name)",
            (name, current - self._keep_versions),
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        run = self._database.execute
        run("BEGIN IMMEDIATE")
        try:
            yield
            run("COMMIT")
        except BaseException as error:
            if self._database.in_transaction:  # SQLite itself rolls back when the disk is full
                run("ROLLBACK")
            if isinstance(error, sqlite3.Error) and error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise StorageFull from error
            raise
