"""SQLite databases: how one is opened, and the thread that one is used in."""
