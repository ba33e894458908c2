"""What was asked and when: the last requests, with times of CLOCK_MONOTONIC, which all processes of the machine share.

Overlap of two transfers is read off these. A body's end is when its last byte was given to the kernel, which may be some
100 kB before the client has read it.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from dataclasses import asdict, dataclass
from typing import IO

KEPT = 10_000


@dataclass(slots=True)
class Record:
    """One request."""

    method: str
    path: str
    """As on the wire, percent-encoded."""
    query: str
    range: str | None
    connection: int
    """Connections are numbered from 1."""
    start_ns: int
    """Its first byte was read."""
    first_byte_ns: int = 0
    """The answer's first byte was written. 0: never."""
    end_ns: int = 0
    """The answer's last byte was written, or the connection was given up."""
    status: int = 0
    code: str = ""
    """The error's name, if it was one."""
    received_bytes: int = 0
    """Of the body."""
    bytes: int = 0
    """Of the answer's body that were sent."""
    fault: int | None = None
    """The id of the rule that was applied."""


class RequestLog:
    """The last KEPT requests that have ended, oldest first.

    Args:
        file: gets a line of JSON for each of them, if given."""

    def __init__(self, file: IO[str] | None = None) -> None:
        self._records: deque[Record] = deque(maxlen=KEPT)
        self._file = file
        self._lock = threading.Lock()

    def add(self, record: Record) -> None:
        with self._lock:
            self._records.append(record)
            if self._file:
                self._file.write(json.dumps(asdict(record)) + "\n")
                self._file.flush()

    def records(self) -> list[Record]:
        with self._lock:
            return list(self._records)

    def clear(self) -> None:
        with self._lock:
            self._records.clear()
