"""The tables of the doors in PostgreSQL. The n-th migration leads to schema n + 1; a released one never changes.

    client_keys   keys of remote clients: id, name, and all of a `Key` as JSON, its secret as a hash

Owns nothing.
"""

from __future__ import annotations

PART = "doors"
MIGRATIONS = (
    """
CREATE TABLE client_keys (id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, value TEXT NOT NULL);
""",
)
