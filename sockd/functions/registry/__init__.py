"""The registry: everything that a function is, as records in SQLite."""
