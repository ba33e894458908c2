"""The last hour, minute by minute: requests, failures, cold starts and latencies of the worker and of its functions.

Owns the minutes. Bounded: an hour, and of each minute the busiest functions; the worker's own row counts all. Minutes are those
of the wall clock, so that they go on after a restart (`history_keeper`). A slot of five seconds counts in the minute in which it
began.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from heapq import nlargest

import msgspec

from sockd.observe.recent import Slot, quantile

MINUTES = 60
MINUTE_S = 60
MOST_FUNCTIONS = 200
"""The most functions of one minute: those that were called most have a row."""
WORKER = ""
"""The name under which all functions together are counted; no function can have it."""


class Minute(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One function, or the worker, in one minute."""

    count: int
    failed: int
    cold: int
    p50_ns: int
    p99_ns: int


class Sum:
    """One function in a minute that may get more slots."""

    __slots__ = ("cold", "failed", "took")

    def __init__(self) -> None:
        self.cold = self.failed = 0
        self.took: dict[int, int] = {}
        """The histogram, as in `Slot`."""

    def add(self, slot: Slot) -> None:
        """Add a slot's numbers."""
        self.cold += slot.cold
        self.failed += slot.failed
        for bucket, count in slot.took.items():
            self.took[bucket] = self.took.get(bucket, 0) + count

    def minute(self) -> Minute:
        """The numbers, without the histogram."""
        count = sum(self.took.values())
        return Minute(count, self.failed, self.cold, quantile(self.took, 0.5), quantile(self.took, 0.99))


Rows = dict[int, dict[str, Minute]]
"""By minute since the epoch, then by function."""


class History:
    """The hour of one worker."""

    def __init__(
        self, rows: Mapping[int, Mapping[str, Minute]] | None = None, offset_s: Callable[[], float] | None = None
    ):
        """Args: rows: of an earlier daemon; offset_s: from CLOCK_MONOTONIC to Unix time."""
        self._rows: Rows = {number: dict(row) for number, row in (rows or {}).items()}
        self._open: dict[int, dict[str, Sum]] = {}
        self._offset_s = offset_s or (lambda: time.time() - time.monotonic())

    def add(self, name: str, slot: Slot) -> None:
        """Count a slot of a function that is over."""
        number = int(slot.started_ns / 1e9 + self._offset_s()) // MINUTE_S
        sums = self._open.setdefault(number, {})
        for each in (name, WORKER):
            sums.setdefault(each, Sum()).add(slot)

    def close(self, now_s: float) -> bool:
        """Close the minutes that are over, and drop those before the last hour. Returns: whether there is a new row."""
        now = int(now_s) // MINUTE_S
        over = [number for number in self._open if number < now]
        for number in over:
            self._close(number, self._open.pop(number))
        # A minute that is to come was recorded before the clock was set back.
        for number in [number for number in self._rows if not now - MINUTES <= number <= now]:
            del self._rows[number]
        return bool(over)

    def of(self, name: str, now_s: float) -> list[tuple[int, Minute | None]]:
        """The last hour of a function, or of `WORKER`, oldest first: each minute's beginning as Unix time, and its numbers if it
        had requests. The minute that is not over is not part of it."""
        now = int(now_s) // MINUTE_S
        numbers = range(now - MINUTES, now)
        return [(number * MINUTE_S, self._rows.get(number, {}).get(name)) for number in numbers]

    def rows(self) -> Rows:
        """A copy, for a thread that writes it down."""
        return {number: dict(row) for number, row in self._rows.items()}

    def forget(self, name: str) -> None:
        """Drop a removed function's rows; the worker's stay as they are."""
        for row in self._rows.values():
            row.pop(name, None)
        for sums in self._open.values():
            sums.pop(name, None)

    def _close(self, number: int, sums: Mapping[str, Sum]) -> None:
        """POLICY: of a minute with many functions, those that were called most have a row, besides the worker's."""
        minutes = {name: each.minute() for name, each in sums.items()}
        kept = nlargest(MOST_FUNCTIONS + 1, minutes, key=lambda name: (name == WORKER, minutes[name].count))
        row = self._rows.setdefault(number, {})
        for name in kept:
            row[name] = together(row[name], minutes[name]) if name in row else minutes[name]


def together(one: Minute, other: Minute) -> Minute:
    """The two parts of a minute in which the worker was restarted. The histograms are gone, so the latencies are those of the
    part with more requests."""
    most = max(one, other, key=lambda part: part.count)
    return Minute(one.count + other.count, one.failed + other.failed, one.cold + other.cold, most.p50_ns, most.p99_ns)
