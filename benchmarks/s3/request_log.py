"""What was asked and when: the last requests, with times of CLOCK_MONOTONIC, which all processes of the machine share.

Overlap of two transfers is read off these. A body's end is when its last byte was given to the kernel, which may be some
100 kB before the client has read it.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from dataclasses import asdict, dataclass, replace
from typing import IO

KEPT = 10_000
BEGIN_DEADLINE_S = 10.0
FINISH_DEADLINE_S = 1.0
"""For a client that has stopped reading just before the end."""


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
    """The bytes of the body that were received."""
    bytes: int = 0
    """The bytes of the answer's body that were sent."""
    fault: int | None = None
    """The id of the rule that was applied."""


class RequestLog:
    """The last KEPT requests, in the order in which they came; of those under way `end_ns` is 0.

    Args:
        file: gets a line of JSON for each of them when it has ended, if given."""

    def __init__(self, file: IO[str] | None = None) -> None:
        self._records: deque[Record] = deque(maxlen=KEPT)
        self._finishing: set[int] = set()
        self._file = file
        self._changed = threading.Condition()

    def begin(self, record: Record) -> None:
        with self._changed:
            self._records.append(record)
            self._changed.notify_all()

    def finishing(self, record: Record) -> None:
        """The last bytes of the answer are about to be sent: the client may soon ask what became of the request."""
        with self._changed:
            self._finishing.add(id(record))

    def end(self, record: Record) -> None:
        with self._changed:
            self._finishing.discard(id(record))
            self._changed.notify_all()
            if self._file:
                self._file.write(json.dumps(asdict(record)) + "\n")
                self._file.flush()

    def records(self, *, at_least: int = 0) -> list[Record]:
        """Copies. Of a request whose answer the caller has read, the end is known.

        Args:
            at_least: wait until as many have begun, but for no more than BEGIN_DEADLINE_S."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._records) >= at_least, BEGIN_DEADLINE_S)
            self._changed.wait_for(lambda: not self._finishing, FINISH_DEADLINE_S)
            return [replace(record) for record in self._records]

    def clear(self) -> None:
        with self._changed:
            self._records.clear()
