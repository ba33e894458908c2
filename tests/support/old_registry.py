"""Registries as earlier versions of sockd wrote them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

SCHEMA_1 = """
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
    PRIMARY KEY (name, version)
) WITHOUT ROWID;
"""
SCHEMA_2 = SCHEMA_1 + "ALTER TABLE versions ADD COLUMN initscript TEXT NOT NULL DEFAULT '';"
SCHEMA_4 = f"""{SCHEMA_2}
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
CREATE TABLE function_urls (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL REFERENCES functions (name) ON DELETE CASCADE,
    qualifier TEXT NOT NULL,
    auth TEXT NOT NULL,
    mode TEXT NOT NULL,
    cors TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    UNIQUE (name, qualifier)
) WITHOUT ROWID;
CREATE TRIGGER function_urls_of_aliases AFTER DELETE ON aliases BEGIN
    DELETE FROM function_urls WHERE name = OLD.name AND qualifier = OLD.alias;
END;
"""
SCHEMAS = {1: SCHEMA_1, 2: SCHEMA_2, 3: SCHEMA_2, 4: SCHEMA_4}
"""By their numbers; 3 has the tables of 2, but what is in them is sealed."""


def old_registry(path: Path, schema: int, functions: int = 1, config: str = "{}") -> sqlite3.Connection:
    """A file of that schema, in it functions `f1`, `f2`, ... of one deploy each."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.executescript(f"{SCHEMAS[schema]} PRAGMA user_version = {schema};")
    for number in range(1, functions + 1):
        name = f"f{number}"
        database.execute("INSERT INTO functions VALUES (?, 1, 5.0, 5.0)", (name,))
        database.execute(
            "INSERT INTO versions (name, version, digest, code_bytes, handler, config, closure, published_at) "
            "VALUES (?, 1, 'd', 10, 'f:f', ?, '[]', 5.0)",
            (name, config),
        )
    return database
