"""PostgreSQL databases: how one is opened, and how its errors are reported."""
