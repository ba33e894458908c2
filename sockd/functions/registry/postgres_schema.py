"""The registry's tables in PostgreSQL. The n-th migration leads to schema n + 1; a released one never changes.

    functions            name → revision, and everything of a function but its deploys: `FunctionAggregate` as JSON
    deploys              (name, version) → one deploy, its environment sealed
    function_revisions   the last revision; a writer locks it, so that revisions become visible in their order

Owns nothing.
"""

from __future__ import annotations

HEAD_SCHEMA = 1
"""The number of the form of `functions.value`. It grows when a field is added that an older sockd would drop from a value that it
changes: an older one reads the values of a newer one, and does not write them."""
MIGRATIONS = (
    """
CREATE TABLE functions (
    name TEXT PRIMARY KEY,
    revision BIGINT NOT NULL,
    schema INTEGER NOT NULL,
    writer BYTEA NOT NULL,
    value TEXT NOT NULL
);
CREATE INDEX functions_revision ON functions (revision);
CREATE TABLE deploys (
    name TEXT NOT NULL REFERENCES functions ON DELETE CASCADE,
    version INTEGER NOT NULL,
    digest TEXT NOT NULL,
    code_bytes BIGINT NOT NULL,
    handler TEXT NOT NULL,
    config TEXT NOT NULL,
    closure TEXT NOT NULL,
    initscript TEXT NOT NULL,
    published_at DOUBLE PRECISION NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    image TEXT NOT NULL,
    PRIMARY KEY (name, version)
);
CREATE TABLE function_revisions (last BIGINT NOT NULL);
INSERT INTO function_revisions VALUES (1);
""",
)
