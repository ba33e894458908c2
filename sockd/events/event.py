"""An event that is to run later, as plain data; its payload stays in the store.

Owns nothing.
"""

from __future__ import annotations

import msgspec

SCHEDULE = "schedule:"
"""What the source of an event begins with that a schedule made."""


class Event(msgspec.Struct):
    """An event without its payload."""

    seq: int
    """Its place in the file."""
    id: bytes
    """16 bytes, the request id of all its attempts."""
    function: str
    qualifier: str
    source: str
    """Where it came from: aws, run, cli, destination, schedule:NAME."""
    hops: int
    """Destinations that it came through."""
    accepted_at: float
    """Unix time."""
    due_at: float
    attempts: int
    """Attempts that are over."""
    failures: int
    """Attempts that failed with an error of the function, or that found no place."""
    throttles: int
    size: int
    """Bytes of its payload."""
    trace: str = ""
    """The trace that it is a part of, as `trace_context.kept` writes it."""
