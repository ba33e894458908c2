"""The registry's tables, and how the file of an earlier sockd gets them.

    functions     name → number of the current deploy, when it came to be, when it last changed
    versions      (name, number) → one deploy: code digest, entry point, settings, packages, initscript
    publications  (name, published number) → the deploy that it is, a description
    numbers       name → the number that was published last; it outlives the function, so that none is used twice
    aliases       (name, alias) → one published version or two, with the share of the second
    provisions    (name, published number or alias) → how many sandboxes are kept initialized

Owns nothing: the connection is the registry's.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager

from sockd.plain.errors import SockdError
from sockd.registry.secrets import Vault, is_sealed
from sockd.sqlite.database import add_tables, schema_of

SCHEMA_VERSION = 4
PUBLISHING = """
CREATE TABLE publications (
    name TEXT NOT NULL REFERENCES functions (name) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    version INTEGER NOT NULL,
    description TEXT NOT NULL,
    published_at REAL NOT NULL,
    PRIMARY KEY (name, number)
) WITHOUT ROWID;
CREATE TABLE numbers (
    name TEXT PRIMARY KEY,
    last INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE aliases (
    name TEXT NOT NULL REFERENCES functions (name) ON DELETE CASCADE,
    alias TEXT NOT NULL,
    version TEXT NOT NULL,
    other TEXT NOT NULL,
    weight REAL NOT NULL,
    description TEXT NOT NULL,
    revision TEXT NOT NULL,
    PRIMARY KEY (name, alias)
) WITHOUT ROWID;
CREATE TABLE provisions (
    name TEXT NOT NULL REFERENCES functions (name) ON DELETE CASCADE,
    qualifier TEXT NOT NULL,
    wanted INTEGER NOT NULL,
    updated_at REAL NOT NULL,
    PRIMARY KEY (name, qualifier)
) WITHOUT ROWID;
"""
SCHEMA = f"""
CREATE TABLE functions (
    name TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE versions (
    name TEXT NOT NULL REFERENCES functions (name) ON DELETE CASCADE,
    version INTEGER NOT NULL,
    digest TEXT NOT NULL,
    code_bytes INTEGER NOT NULL,
    handler TEXT NOT NULL,
    config TEXT NOT NULL,
    closure TEXT NOT NULL,
    published_at REAL NOT NULL,
    initscript TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (name, version)
) WITHOUT ROWID;
{PUBLISHING}"""
INITSCRIPTS = "ALTER TABLE versions ADD COLUMN initscript TEXT NOT NULL DEFAULT '';"
"""What makes schema 2 of schema 1. Schema 3 has the tables of 2, but settings may be sealed (`_seal`); 4 has `PUBLISHING`."""

Transaction = Callable[[], AbstractContextManager[None]]
"""A block whose statements all happen or none. Raises: StorageFull."""


class BadRegistry(SockdError):
    """The registry's file cannot be used; the daemon does not start. The message says what to do."""


def prepare(database: sqlite3.Connection, file_name: str, vault: Vault) -> None:
    """Checks the file, gives it the tables of today, and sets how it is used. Raises BadRegistry, sqlite3.DatabaseError."""
    (words,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if words != "ok":
        raise damaged(file_name, words)
    found = schema_of(database, file_name, SCHEMA_VERSION, BadRegistry)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("PRAGMA foreign_keys = ON")
    database.execute("PRAGMA secure_delete = ON")
    if found == 0:
        add_tables(database, SCHEMA, SCHEMA_VERSION)
    elif found == 1:
        add_tables(database, INITSCRIPTS, 2)
    _give_key(database, vault)
    if found in (1, 2):
        _seal(database, vault)
        # Only now is it schema 3: a kill before this line has all of it done again.
        database.execute("PRAGMA user_version = 3")
    if found in (1, 2, 3):
        add_tables(database, PUBLISHING, 4)


def _give_key(database: sqlite3.Connection, vault: Vault) -> None:
    """A new key, unless the vault has one or what is sealed waits for the one that is missing."""
    if vault.has_key or any(is_sealed(config) for (config,) in database.execute("SELECT config FROM versions")):
        return
    vault.make_key()


def _seal(database: sqlite3.Connection, vault: Vault) -> None:
    """Seal what an older sockd kept as plain text, and leave no page of it, in the file or in the log beside it."""
    rows = database.execute("SELECT name, version, config FROM versions").fetchall()
    database.execute("BEGIN IMMEDIATE")
    for name, version, config in rows:
        sealed = vault.seal(name, config)
        database.execute("UPDATE versions SET config = ? WHERE name = ? AND version = ?", (sealed, name, version))
    database.execute("COMMIT")
    database.execute("VACUUM")  # pages that were freed before: secure_delete was off
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def damaged(file_name: str, words: str) -> BadRegistry:
    """Args: words: SQLite's."""
    return BadRegistry(
        f"{file_name} is damaged ({words}). To rebuild it: move {file_name}, {file_name}-wal and {file_name}-shm out "
        "of the state directory, start sockd again and deploy the functions again; their packages are still installed"
    )
