"""The registry's tables in PostgreSQL. The n-th migration leads to schema n + 1; a released one never changes.

    functions            name → revision, and everything of a function but its deploys: `FunctionAggregate` as JSON
    deploys              (name, version) → one deploy, its environment sealed
    function_revisions   the last revision; a writer locks it, so that revisions become visible in their order
    function_removals    name → the revision of its removal, for followers; until there is a function of this name again
    function_group       the name of the group of workers, and the prefix of its blobs in the chunk store
    other_revisions      what followers read besides functions, such as the keys of clients → the revision of its last change
    blobs                (name, generation) → one file that deploys need, whose bytes are in the chunk store

A trigger notifies the followers of a change (`CHANNEL`).

Owns nothing.
"""

from __future__ import annotations

HEAD_SCHEMA = 1
"""The number of the form of `functions.value`. It grows when a field is added that an older sockd would drop from a value that it
changes: an older one reads the values of a newer one, and does not write them."""
CHANNEL = "sockd_functions"
"""Where the commit of a change is notified, for all schemas of a database."""
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
    f"""
CREATE TABLE function_removals (name TEXT PRIMARY KEY, revision BIGINT NOT NULL);
CREATE INDEX function_removals_revision ON function_removals (revision);
CREATE TABLE function_group (
    name TEXT NOT NULL,
    space TEXT NOT NULL,
    collected_at TIMESTAMPTZ NOT NULL DEFAULT now()
);
CREATE TABLE blobs (
    name TEXT NOT NULL,
    generation TEXT NOT NULL,
    parts INTEGER NOT NULL,
    is_whole BOOLEAN NOT NULL DEFAULT false,
    used_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (name, generation)
);
CREATE FUNCTION notify_of_functions() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM pg_notify('{CHANNEL}', '');
    RETURN NULL;
END $$;
CREATE TRIGGER notify_of_functions AFTER INSERT OR UPDATE OR DELETE ON functions
    FOR EACH STATEMENT EXECUTE FUNCTION notify_of_functions();
""",
    """
CREATE TABLE other_revisions (name TEXT PRIMARY KEY, revision BIGINT NOT NULL);
CREATE TRIGGER notify_of_others AFTER INSERT OR UPDATE ON other_revisions
    FOR EACH STATEMENT EXECUTE FUNCTION notify_of_functions();
""",
)
