"""Logs: what functions printed lately, kept in memory.

Owns the records, bounded three ways: per function by number and by bytes, and all functions together by bytes, for
which the function that has been silent longest pays first. Knows nothing of how the output was captured.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice, takewhile

from sockd.base.telemetry import LogRecord
from sockd.isolation.sandbox.live_output import LiveOutput

RECORD_BYTES = 256
"""What a record costs besides its text."""
MAX_RUNNING = 10_000
"""Requests of which a follower knows what it has had; requests whose follower has gone leave no record."""


class Ring:
    """The newest records of one function."""

    __slots__ = ("bytes", "followers", "records")

    def __init__(self) -> None:
        self.records: deque[LogRecord] = deque()
        self.bytes = 0
        self.followers: set[Follower] = set()

    def push(self, record: LogRecord) -> None:
        self.records.append(record)
        self.bytes += _cost(record)

    def drop_oldest(self) -> int:
        """Forgets one record and returns the bytes it took."""
        freed = _cost(self.records.popleft())
        self.bytes -= freed
        return freed


def _cost(record: LogRecord) -> int:
    return len(record.text) + RECORD_BYTES


class LogBook:
    """The logs of all functions. The newest record of a function stays even if it alone is over the limit."""

    def __init__(
        self,
        max_records_per_function: int = 1000,
        max_bytes_per_function: int = 1 << 20,
        *,
        max_bytes: int = 64 << 20,
        follower_records: int = 1000,
        live: LiveOutput | None = None,
    ) -> None:
        """
        Args:
            live: gives followers what requests print while they run; without it they have each record at its end.
            max_records_per_function, max_bytes_per_function: of one function's ring.
            max_bytes: of all rings together.
            follower_records: what a follower may be behind before it loses the oldest."""
        self._max_records_per_function = max_records_per_function
        self._max_bytes_per_function = max_bytes_per_function
        self._max_bytes = max_bytes
        self._follower_records = follower_records
        self._rings: OrderedDict[str, Ring] = OrderedDict()
        """By name; who wrote last stands last."""
        self.bytes = 0
        self._live = live or LiveOutput()
        self._is_followed_no_more = False

    def append(self, name: str, record: LogRecord) -> None:
        """Keeps a record and gives it to the followers of its function."""
        ring = self._ring(name)
        self._rings.move_to_end(name)
        ring.push(record)
        self.bytes += _cost(record)
        while len(ring.records) > self._max_records_per_function or (
            ring.bytes > self._max_bytes_per_function and len(ring.records) > 1
        ):
            self.bytes -= ring.drop_oldest()
        if self.bytes > self._max_bytes:
            self._shrink()
        for follower in ring.followers:
            follower.push(record)

    def _ring(self, name: str) -> Ring:
        ring = self._rings.get(name)
        if ring is None:
            ring = self._rings[name] = Ring()
        return ring

    def _shrink(self) -> None:
        while self.bytes > self._max_bytes:
            name, ring = next(iter(self._rings.items()))
            if ring.records:
                self.bytes -= ring.drop_oldest()
            elif ring.followers:
                self._rings.move_to_end(name)
            else:
                del self._rings[name]

    def tail(
        self, name: str, *, limit: int | None = None, request_id: str | None = None, since_s: float = 0.0
    ) -> list[LogRecord]:
        """The newest records of a function, oldest of them first; none for a function that printed nothing.

        Args:
            limit: most records; None is all that are kept.
            request_id: only those whose id begins so.
            since_s: only those from this Unix time on."""
        ring = self._rings.get(name)
        newest_first = reversed(ring.records) if ring else iter(())
        beginning = request_id or ""
        recent = takewhile(lambda record: record.time_s >= since_s, newest_first)
        wanted = (record for record in recent if record.request_id.startswith(beginning))
        return list(islice(wanted, limit))[::-1]

    @contextmanager
    def follow(self, name: str) -> Iterator[Follower]:
        """The records of a function from now on, and first what its running requests have printed:
        `with book.follow(name) as records: async for record in records`.

        The iteration ends when the function is forgotten, and at once after `end_followers`."""
        follower = Follower(self._follower_records)
        if self._is_followed_no_more:
            follower.end()
        ring = self._ring(name)
        ring.followers.add(follower)
        try:
            self._live.follow(name, partial(self._show, name, ring))
            yield follower
        finally:
            ring.followers.discard(follower)
            if not ring.followers and self._rings.get(name) in (ring, None):
                self._live.shows.pop(name, None)
            if not ring.records and not ring.followers and self._rings.get(name) is ring:
                del self._rings[name]

    @staticmethod
    def _show(name: str, ring: Ring, request_id: bytes, kept: bytearray) -> None:
        """A request of a followed function has printed something and runs on."""
        text_id, now_s = str(uuid.UUID(bytes=request_id)), time.time()
        for follower in ring.followers:
            follower.push_part(name, text_id, kept, now_s)

    def forget(self, name: str) -> None:
        """Drops everything a function printed and ends its followers."""
        ring = self._rings.pop(name, None)
        if ring is not None:
            self.bytes -= ring.bytes
            self._live.shows.pop(name, None)
            for follower in ring.followers:
                follower.end()

    def end_followers(self) -> None:
        """End all followers, now and from now on: they wait for records without an end, and would hold up the worker's."""
        self._is_followed_no_more = True
        for ring in self._rings.values():
            for follower in ring.followers:
                follower.end()


class Follower:
    """An async iterator over the records of one function. Read too slowly, it loses the oldest and counts them."""

    __slots__ = ("_ended", "_records", "_shown", "_wake", "dropped")

    def __init__(self, max_records: int) -> None:
        self._records: deque[LogRecord] = deque(maxlen=max_records)
        self._shown: OrderedDict[str, int] = OrderedDict()
        """Bytes of the output of requests that run which were pushed in parts."""
        self._wake = asyncio.Event()
        self._ended = False
        self.dropped = 0
        """Records lost so far."""

    def push(self, record: LogRecord) -> None:
        """A request has ended: what it printed, but for the parts that were pushed."""
        shown = self._shown.pop(record.request_id, 0)
        self._push(replace(record, text=record.text[shown:]) if shown else record)

    def push_part(self, name: str, request_id: str, kept: bytearray, now_s: float) -> None:
        """A request runs on: the whole lines of what is kept of its output that were not pushed yet."""
        start, end = self._shown.get(request_id, 0), kept.rfind(b"\n") + 1
        if end <= start:
            return
        self._shown[request_id] = end
        if len(self._shown) > MAX_RUNNING:
            self._shown.popitem(last=False)
        self._push(LogRecord(request_id, now_s, bytes(kept[start:end]), 0, name, ended=False))

    def _push(self, record: LogRecord) -> None:
        self.dropped += len(self._records) == self._records.maxlen
        self._records.append(record)
        self._wake.set()

    def end(self) -> None:
        """No record comes after this; those already here are still read."""
        self._ended = True
        self._wake.set()

    def __aiter__(self) -> Follower:
        return self

    async def __anext__(self) -> LogRecord:
        while not self._records:
            if self._ended:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
        return self._records.popleft()
