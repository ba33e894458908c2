"""Room for events: how many may wait, and how many bytes, altogether and of one function.

Owns the count of what is being written; what is on record is counted by the queue.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from sockd.base.config import EventsConfig
from sockd.base.errors import TooManyEvents
from sockd.events.event_queue import EventQueue


class EventRoom:
    """`held` takes some for as long as an event is being written."""

    def __init__(self, queue: EventQueue, config: EventsConfig) -> None:
        self._queue = queue
        self._config = config
        self._coming: Counter[str] = Counter()
        self._coming_bytes: Counter[str] = Counter()

    @contextlib.contextmanager
    def held(self, function: str, size_bytes: int) -> Iterator[None]:
        """For the length of a block. Raises: TooManyEvents."""
        self._check(function, size_bytes)
        self._coming[function] += 1
        self._coming_bytes[function] += size_bytes
        try:
            yield
        finally:
            self._coming[function] -= 1
            self._coming_bytes[function] -= size_bytes
            if not self._coming[function]:
                del self._coming[function], self._coming_bytes[function]

    def _check(self, function: str, size_bytes: int) -> None:
        config, queue = self._config, self._queue
        share = config.function_share
        count = len(queue) + self._coming.total()
        size = queue.size_bytes + self._coming_bytes.total() + size_bytes
        own, own_bytes = queue.of(function)
        own += self._coming[function]
        own_bytes += self._coming_bytes[function] + size_bytes
        if count >= config.max_events:
            raise TooManyEvents(f"{count} events wait, which are events.max_events")
        if size > config.max_bytes:
            raise TooManyEvents(f"the events that wait would have {size} bytes; events.max_bytes is {config.max_bytes}")
        if own >= max(config.max_events * share, 1) or own_bytes > max(config.max_bytes * share, size_bytes):
            raise TooManyEvents(
                f"{own} events of {function} wait, which is its share of the worker's (events.function_share)"
            )
