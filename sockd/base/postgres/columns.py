"""Lists of columns in SQL. Pure."""

from __future__ import annotations


def excluded(names: str) -> str:
    """Return the columns of a row that an INSERT refused; a newer sockd may have added columns to the table.

    Args: names: separated by a comma and a blank."""
    return ", ".join(f"excluded.{name}" for name in names.split(", "))
