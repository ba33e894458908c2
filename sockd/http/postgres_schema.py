"""The tables of the APIs in PostgreSQL. The n-th migration leads to schema n + 1; a released one never changes.

    client_keys   keys of remote clients: id, name, and all of a `Key` as JSON, its secret as a hash
    answers       SHA-256 of an Idempotency-Key → the claim of the request that runs, or its answer (status), until when it holds

Owns nothing.
"""

from __future__ import annotations

PART = "http"
MIGRATIONS = (
    """
CREATE TABLE client_keys (id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, value TEXT NOT NULL);
""",
    """
CREATE TABLE answers (
    key BYTEA PRIMARY KEY,
    claim BYTEA NOT NULL,
    digest BYTEA NOT NULL,
    worker TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    until DOUBLE PRECISION NOT NULL,
    status INTEGER,
    fields TEXT NOT NULL DEFAULT '',
    body BYTEA NOT NULL DEFAULT '',
    size BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX answers_until ON answers (until);
""",
)
