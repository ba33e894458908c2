"""The registry's tables in SQLite, and how they are used. `migrations` brings them up to date.

    functions     name → revision, and everything of a function but its deploys: `FunctionAggregate` as JSON
    versions      (name, number) → one deploy: code digest, entry point, settings, packages, initscript, image
    revisions     the last revision, so that none is used twice

Owns nothing: the connection is the store's.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import msgspec

from sockd.base.errors import SockdError
from sockd.base.sqlite.database import add_tables, schema_of
from sockd.functions.registry import migrations
from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.secrets import Vault, is_sealed

SCHEMA_VERSION = 8
SCHEMA = """
CREATE TABLE functions (
    name TEXT PRIMARY KEY,
    revision INTEGER NOT NULL,
    value TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE versions (
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    digest TEXT NOT NULL,
    code_bytes INTEGER NOT NULL,
    handler TEXT NOT NULL,
    config TEXT NOT NULL,
    closure TEXT NOT NULL,
    published_at REAL NOT NULL,
    initscript TEXT NOT NULL,
    created_at REAL NOT NULL,
    image TEXT NOT NULL,
    PRIMARY KEY (name, version)
) WITHOUT ROWID;
CREATE TABLE revisions (last INTEGER NOT NULL);
INSERT INTO revisions VALUES (1);
"""


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
    database.execute("PRAGMA secure_delete = ON")
    if found == 0:
        add_tables(database, SCHEMA, SCHEMA_VERSION)
    elif found == 1:
        add_tables(database, migrations.INITSCRIPTS, 2)
    _give_key(database, vault)
    if found in (1, 2):
        migrations.seal(database, vault)
        # Only now is it schema 3: a kill before this line has all of it done again.
        database.execute("PRAGMA user_version = 3")
    if found == 5:
        add_tables(database, migrations.IMAGES, SCHEMA_VERSION)
    elif found in (6, 7):
        # An older sockd would drop the policies, and the guards of aliases, of a value that it changes.
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    elif 0 < found < 5:
        rows = [(each.name, encoded(each)) for each in migrations.gathered(database)]
        migrations.replace_tables(database, SCHEMA, SCHEMA_VERSION, rows)


def encoded(function: FunctionAggregate) -> str:
    """The column `value`."""
    return msgspec.json.encode(replace(function, revision=0, deploys=())).decode()


def decoded(value: str) -> FunctionAggregate:
    """What was encoded."""
    return msgspec.json.decode(value, type=FunctionAggregate)


def _give_key(database: sqlite3.Connection, vault: Vault) -> None:
    """A new key, unless the vault has one or what is sealed waits for the one that is missing."""
    if vault.has_key or any(is_sealed(config) for (config,) in database.execute("SELECT config FROM versions")):
        return
    vault.make_key()


def damaged(file_name: str, words: str) -> BadRegistry:
    """Args: words: SQLite's."""
    return BadRegistry(
        f"{file_name} is damaged ({words}). Restore a backup (sockd restore --replace). Without one, rebuild it: move "
        f"{file_name}, {file_name}-wal and {file_name}-shm out of the state directory, start sockd again and deploy all "
        "functions again: the first deploy deletes the code of the others; their packages are still installed"
    )
