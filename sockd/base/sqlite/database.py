"""What the worker's SQLite files have in common: the number of their schema, and whose they are. Owns nothing."""

from __future__ import annotations

import sqlite3

from sockd.base.errors import SockdError


def schema_of(database: sqlite3.Connection, file_name: str, newest: int, error: type[SockdError]) -> int:
    """The number of the schema; 0: the file is empty.

    Args: newest: that this sockd knows. Raises: `error`, for a file of a newer sockd or of something else."""
    (found,) = database.execute("PRAGMA user_version").fetchone()
    if found > newest:
        raise error(
            f"{file_name} was written by a newer sockd (schema {found}, this one knows {newest}): "
            "start that version, or use another state directory"
        )
    if found == 0 and database.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
        raise error(f"{file_name} is a database of something else: use another state directory")
    return int(found)


def add_tables(database: sqlite3.Connection, tables: str, schema: int) -> None:
    """Make tables and number the schema, both or neither. Args: tables: statements."""
    database.executescript(f"BEGIN IMMEDIATE; {tables} PRAGMA user_version = {schema}; COMMIT;")
