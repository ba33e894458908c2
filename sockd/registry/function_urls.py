"""Function URLs: which name in the Host header, or in the path, means which function, and who may call it there.

Owns the table `function_urls` of the registry's file, over a connection of its own. Its rows hang on those of the registry's
functions and aliases: forgetting one of these forgets its URL in the same transaction, and no other code has to think of it.
Read and written straight on the event loop, as the registry is; nothing is kept in memory, so nothing there can be out of date.
"""

from __future__ import annotations

import base64
import os
import re
import sqlite3
import time
from pathlib import Path
from typing import Literal, get_args

import msgspec

from sockd.plain.errors import BadRequest, NoSuchFunction, SockdError, StorageFull

Auth = Literal["NONE", "AWS_IAM"]
Mode = Literal["BUFFERED", "RESPONSE_STREAM"]
AUTHS: tuple[Auth, ...] = get_args(Auth)
MODES: tuple[Mode, ...] = get_args(Mode)
ID_BYTES = 20
"""Of randomness; 32 letters and digits, as AWS's."""
LISTED = 100
"""Of the values of one list in `Cors`; the lengths below are AWS's, too."""
MAX_AGE_S = 86400
SCHEMA = """
CREATE TABLE IF NOT EXISTS function_urls (
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
CREATE TRIGGER IF NOT EXISTS function_urls_of_aliases AFTER DELETE ON aliases BEGIN
    DELETE FROM function_urls WHERE name = OLD.name AND qualifier = OLD.alias;
END;
"""
_SELECT = "SELECT id, name, qualifier, auth, mode, cors, created_at, updated_at FROM function_urls "
_ORIGIN = re.compile(r"\*|[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9.:\[\]_*-]{1,240}|null")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,1024}")
_METHOD = re.compile(r"\*|[A-Z]{1,6}")


class UrlExists(SockdError):
    """The function, or the alias, has a URL already."""

    status = 409
    error_type = "ResourceConflictException"


class NoSuchUrl(NoSuchFunction):
    """The function, or the alias, has no URL; or no URL has this id."""


class Cors(msgspec.Struct, frozen=True, omit_defaults=True, rename="pascal", kw_only=True):
    """What browsers may do from pages of other origins, by AWS's names."""

    allow_credentials: bool = False
    allow_headers: list[str] = []
    allow_methods: list[str] = []
    allow_origins: list[str] = []
    expose_headers: list[str] = []
    max_age: int = 0
    """Seconds that a browser may remember an answer to a preflight."""

    def check(self) -> None:
        """All of it comes to stand in headers of answers. Raises: BadRequest."""
        rules = (
            ("AllowOrigins", self.allow_origins, _ORIGIN, "origins such as https://example.com, or *"),
            ("AllowMethods", self.allow_methods, _METHOD, "methods in upper case, or *"),
            ("AllowHeaders", self.allow_headers, _TOKEN, "names of headers, or *"),
            ("ExposeHeaders", self.expose_headers, _TOKEN, "names of headers, or *"),
        )
        for key, values, pattern, what in rules:
            if len(values) > LISTED or not all(pattern.fullmatch(value) for value in values):
                raise BadRequest(f"Cors.{key} must be at most {LISTED} {what}")
        if not 0 <= self.max_age <= MAX_AGE_S:
            raise BadRequest(f"Cors.MaxAge must be 0 to {MAX_AGE_S} seconds")


class FunctionUrl(msgspec.Struct, frozen=True):
    """One URL."""

    id: str
    name: str
    """The function."""
    qualifier: str
    """An alias of it; empty: what was deployed last."""
    auth: Auth
    mode: Mode
    cors: Cors | None
    """None: preflights are the function's own business."""
    created_at: float
    """Unix time."""
    updated_at: float


class FunctionUrls:
    """The open table. Not to be used from another thread than the one that opened it."""

    def __init__(self, database: sqlite3.Connection) -> None:
        """Args: database: with the registry's tables `functions` and `aliases`, without implicit transactions."""
        self._database = database
        database.execute("PRAGMA foreign_keys = ON")
        database.execute("PRAGMA synchronous = NORMAL")
        database.executescript(SCHEMA)

    @classmethod
    def open(cls, path: Path) -> FunctionUrls:
        """Args: path: the registry's file; the registry has been opened before, and has seen whether it is sound."""
        return cls(sqlite3.connect(path, isolation_level=None))

    def close(self) -> None:
        self._database.close()

    def create(
        self, name: str, qualifier: str = "", *, auth: Auth = "NONE", mode: Mode = "BUFFERED", cors: Cors | None = None
    ) -> FunctionUrl:
        """Give a function, or one of its aliases, a URL. Raises: UrlExists, NoSuchFunction, BadRequest, StorageFull."""
        _check(auth, mode, cors)
        now = time.time()
        id_ = base64.b32encode(os.urandom(ID_BYTES)).decode().lower()
        url = FunctionUrl(id_, name, qualifier, auth, mode, cors, now, now)
        try:
            self._write("INSERT INTO function_urls VALUES (?, ?, ?, ?, ?, ?, ?, ?)", _row(url))
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
                raise NoSuchFunction(f"no function {name!r}") from None
            what = f"function {name!r}" + (f" with the qualifier {qualifier!r}" if qualifier else "")
            raise UrlExists(f"{what} has a URL already") from None
        return url

    def update(self, old: FunctionUrl, *, auth: Auth, mode: Mode, cors: Cors | None) -> FunctionUrl:
        """Change how a URL is served; its id stays. Raises: BadRequest, StorageFull."""
        _check(auth, mode, cors)
        url = msgspec.structs.replace(old, auth=auth, mode=mode, cors=cors, updated_at=time.time())
        self._write(
            "UPDATE function_urls SET auth = ?, mode = ?, cors = ?, updated_at = ? WHERE id = ?",
            (auth, mode, _cors_text(cors), url.updated_at, url.id),
        )
        return url

    def delete(self, name: str, qualifier: str = "") -> None:
        """Take a URL back. Raises: NoSuchUrl, StorageFull."""
        self._write("DELETE FROM function_urls WHERE id = ?", (self.of(name, qualifier).id,))

    def find(self, id_: str) -> FunctionUrl:
        """The URL with this id. Raises: NoSuchUrl."""
        found = self._select("WHERE id = ?", (id_,))
        if not found:
            raise NoSuchUrl("no function has this URL")
        return found[0]

    def of(self, name: str, qualifier: str = "") -> FunctionUrl:
        """The URL of a function, or of one of its aliases. Raises: NoSuchUrl."""
        found = self._select("WHERE name = ? AND qualifier = ?", (name, qualifier))
        if not found:
            raise NoSuchUrl(
                f"function {name!r} has no URL" + (f" for the qualifier {qualifier!r}" if qualifier else "")
            )
        return found[0]

    def all_of(self, name: str) -> list[FunctionUrl]:
        """All URLs of a function, by qualifier."""
        return self._select("WHERE name = ? ORDER BY qualifier", (name,))

    def _select(self, where: str, values: tuple[str, ...]) -> list[FunctionUrl]:
        rows = self._database.execute(_SELECT + where, values)
        return [
            FunctionUrl(id_, name, qualifier, auth, mode, _cors_of(cors), created_at, updated_at)
            for id_, name, qualifier, auth, mode, cors, created_at, updated_at in rows
        ]

    def _write(self, statement: str, values: tuple[object, ...]) -> None:
        try:
            self._database.execute(statement, values)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise StorageFull from error
            raise


def _check(auth: str, mode: str, cors: Cors | None) -> None:
    if auth not in AUTHS:
        raise BadRequest(f"AuthType must be one of {', '.join(AUTHS)}")
    if mode not in MODES:
        raise BadRequest(f"InvokeMode must be one of {', '.join(MODES)}")
    if cors is not None:
        cors.check()


def _row(url: FunctionUrl) -> tuple[object, ...]:
    return (*msgspec.structs.astuple(url)[:5], _cors_text(url.cors), url.created_at, url.updated_at)


def _cors_text(cors: Cors | None) -> str:
    return msgspec.json.encode(cors).decode()


def _cors_of(text: str) -> Cors | None:
    return msgspec.json.decode(text, type=Cors | None)
