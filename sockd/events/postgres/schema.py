"""The tables of events in PostgreSQL. The n-th migration leads to schema n + 1; a released one never changes.

    events      accepted and not over, each with the worker that has it: only that worker, in its last epoch, changes it
    bodies      payloads of events and of dead letters, by the id of the event
    accepted    ids that SDKs keep over their retries, for a few minutes
    dead        dead letters; dead_total is their sum, which a trigger keeps
    suspicions  function → how many daemons have died while its events ran, and when its next one is due
    workers     each worker's epoch, which grows at each of its starts and when it is declared dead; in a group, when it reported
                last by the database's clock, after which silence it is dead (0: never), and which worker has its events then
    group_name  the one group whose workers use this database
    shared      one row: a number that grows with each change of configs and schedules but the ticks

Owns nothing.
"""

from __future__ import annotations

COMMON = """
    seq BIGINT PRIMARY KEY DEFAULT nextval('event_seq'),
    id BYTEA NOT NULL UNIQUE,
    function TEXT NOT NULL,
    qualifier TEXT NOT NULL,
    source TEXT NOT NULL,
    hops INTEGER NOT NULL,
    accepted_at DOUBLE PRECISION NOT NULL,
    due_at DOUBLE PRECISION NOT NULL,
    attempts INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    throttles INTEGER NOT NULL,
    size BIGINT NOT NULL,
    trace TEXT NOT NULL,
"""
MIGRATIONS = (
    f"""
CREATE SEQUENCE event_seq;
CREATE TABLE workers (id TEXT PRIMARY KEY, epoch BIGINT NOT NULL, started_at DOUBLE PRECISION NOT NULL);
CREATE TABLE events ({COMMON}
    worker TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    running BOOLEAN NOT NULL DEFAULT false,
    deaths INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX events_worker ON events (worker, seq);
CREATE TABLE bodies (id BYTEA PRIMARY KEY, body BYTEA NOT NULL);
CREATE TABLE accepted (
    key BYTEA PRIMARY KEY,
    id BYTEA NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    number BIGSERIAL
);
CREATE INDEX accepted_number ON accepted (number);
CREATE INDEX accepted_at ON accepted (at);
CREATE TABLE dead ({COMMON}
    died_at DOUBLE PRECISION NOT NULL,
    reason TEXT NOT NULL,
    error_type TEXT NOT NULL,
    error TEXT NOT NULL
);
CREATE INDEX dead_function ON dead (function, seq);
CREATE TABLE dead_total (number BIGINT NOT NULL, size BIGINT NOT NULL);
INSERT INTO dead_total VALUES (0, 0);
CREATE FUNCTION dead_came() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    UPDATE dead_total SET number = number + came.n, size = size + came.s
    FROM (SELECT count(*) AS n, coalesce(sum(new_rows.size), 0) AS s FROM new_rows) AS came;
    RETURN NULL;
END $$;
CREATE FUNCTION dead_went() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    UPDATE dead_total SET number = number - went.n, size = dead_total.size - went.s
    FROM (SELECT count(*) AS n, coalesce(sum(old_rows.size), 0) AS s FROM old_rows) AS went;
    RETURN NULL;
END $$;
CREATE TRIGGER dead_came AFTER INSERT ON dead REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION dead_came();
CREATE TRIGGER dead_went AFTER DELETE ON dead REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION dead_went();
CREATE TABLE suspicions (
    function TEXT PRIMARY KEY,
    deaths INTEGER NOT NULL,
    died_at DOUBLE PRECISION NOT NULL,
    due_at DOUBLE PRECISION NOT NULL
);
CREATE TABLE configs (
    function TEXT NOT NULL,
    qualifier TEXT NOT NULL,
    max_retries INTEGER,
    max_age_s INTEGER,
    on_success TEXT NOT NULL,
    on_failure TEXT NOT NULL,
    modified_at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (function, qualifier)
);
CREATE TABLE schedules (
    name TEXT PRIMARY KEY,
    function TEXT NOT NULL,
    qualifier TEXT NOT NULL,
    expression TEXT NOT NULL,
    timezone TEXT NOT NULL,
    event BYTEA NOT NULL,
    enabled BOOLEAN NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    next_at DOUBLE PRECISION NOT NULL,
    last_at DOUBLE PRECISION NOT NULL
);
""",
    """
ALTER TABLE workers ADD COLUMN seen_at DOUBLE PRECISION NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN silent_s DOUBLE PRECISION NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN taken_by TEXT NOT NULL DEFAULT '';
ALTER TABLE workers ADD COLUMN about TEXT NOT NULL DEFAULT '{}';
CREATE TABLE group_name (name TEXT NOT NULL, is_only BOOLEAN PRIMARY KEY DEFAULT true CHECK (is_only));
CREATE TABLE shared (revision BIGINT NOT NULL);
INSERT INTO shared VALUES (1);
CREATE FUNCTION shared_changed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    UPDATE shared SET revision = revision + 1;
    RETURN NULL;
END $$;
CREATE TRIGGER config_changed AFTER INSERT OR UPDATE OR DELETE ON configs
    FOR EACH STATEMENT EXECUTE FUNCTION shared_changed();
CREATE TRIGGER schedule_changed AFTER INSERT OR UPDATE OF expression OR DELETE ON schedules
    FOR EACH STATEMENT EXECUTE FUNCTION shared_changed();
""",
)
