"""What earlier versions of sockd kept in the registry's file, and how it becomes that of today.

schema 1  functions and their deploys      schema 4  tables for published versions, aliases, provisions; function URLs
schema 2  initscripts of deploys           schema 5  one value for each function, but for its deploys
schema 3  sealed settings                  schema 6  images of deploys
                                           schema 7  policies, in the value of each function
                                           schema 8  guards of aliases, there
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.aliases import Alias
from sockd.functions.registry.function_url import Cors, FunctionUrl
from sockd.functions.registry.provisions import Provision
from sockd.functions.registry.publications import Publication
from sockd.functions.registry.secrets import Vault

INITSCRIPTS = "ALTER TABLE versions ADD COLUMN initscript TEXT NOT NULL DEFAULT '';"
"""What makes schema 2 of schema 1."""
IMAGES = "ALTER TABLE versions ADD COLUMN image TEXT NOT NULL DEFAULT '';"
"""What makes schema 6 of schema 5."""
PUBLICATIONS = "SELECT name, number, version, description, published_at FROM publications ORDER BY number"
ALIASES = "SELECT name, alias, version, other, weight, description, revision FROM aliases ORDER BY alias"
PROVISIONS = "SELECT name, qualifier, wanted, updated_at FROM provisions ORDER BY qualifier"
URLS = "SELECT name, qualifier, id, auth, mode, cors, created_at, updated_at FROM function_urls ORDER BY qualifier"
NUMBERS = "SELECT name, last FROM numbers"
REPLACED = ("function_urls", "provisions", "aliases", "publications", "numbers", "old_versions", "old_functions")
"""Tables whose content moves to today's; before schema 4 only the last two are there."""
COPY = """
SELECT name, versions.version, digest, code_bytes, handler, config, closure, published_at, initscript, created_at, ''
FROM old_versions AS versions JOIN old_functions USING (name)
"""


def seal(database: sqlite3.Connection, vault: Vault) -> None:
    """Seal what an older sockd kept as plain text, and leave no page of it, in the file or in its log."""
    rows = database.execute("SELECT name, version, config FROM versions").fetchall()
    database.execute("BEGIN IMMEDIATE")
    for name, version, config in rows:
        sealed = vault.seal(name, config)
        database.execute("UPDATE versions SET config = ? WHERE name = ? AND version = ?", (sealed, name, version))
    database.execute("COMMIT")
    database.execute("VACUUM")  # pages that were freed before: secure_delete was off
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def gathered(database: sqlite3.Connection) -> Iterator[FunctionAggregate]:
    """What the tables of schema 4 say of each function, without its deploys; also of functions that are gone, if one of
    their numbers may not be used again."""
    publications, aliases = _by_name(database, PUBLICATIONS), _by_name(database, ALIASES)
    provisions, urls = _by_name(database, PROVISIONS), _by_name(database, URLS)
    numbers = {name: last for name, ((_, last),) in _by_name(database, NUMBERS).items()}
    names = {name for (name,) in database.execute("SELECT name FROM functions")}
    for name in sorted(names | numbers.keys()):
        yield FunctionAggregate(
            name,
            last_number=numbers.get(name, 0),
            publications={row[1]: Publication(*row) for row in publications[name]},
            aliases={row[1]: Alias(*row) for row in aliases[name]},
            provisions={row[1]: Provision(*row) for row in provisions[name]},
            urls={row[1]: _url(*row) for row in urls[name]},
        )


def replace_tables(database: sqlite3.Connection, schema: str, number: int, rows: Sequence[tuple[str, str]]) -> None:
    """Put today's tables in the place of those of schema 4, all or nothing.

    Args: schema: of today; number: its number; rows: of each function its name and its aggregate, encoded."""
    drops = "".join(f"DROP TABLE IF EXISTS {table};" for table in REPLACED)
    database.executescript(
        "BEGIN IMMEDIATE; ALTER TABLE functions RENAME TO old_functions; ALTER TABLE versions RENAME TO old_versions;"
        f"{schema} INSERT INTO versions {COPY}; {drops}"
    )
    database.executemany("INSERT INTO functions VALUES (?, 1, ?)", rows)
    database.execute(f"PRAGMA user_version = {number}")
    database.execute("COMMIT")


def _by_name(database: sqlite3.Connection, query: str) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of each function; none if the table is not there."""
    found: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    table = query.split(" FROM ")[1].split()[0]
    if database.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone():
        for row in database.execute(query):
            found[row[0]].append(row)
    return found


def _url(name: str, qualifier: str, id_: str, auth: Any, mode: Any, cors: str, *times: float) -> FunctionUrl:
    return FunctionUrl(id_, name, qualifier, auth, mode, msgspec.json.decode(cors, type=Cors | None), *times)
