"""What happened lately: per function, how often and how fast, over about a minute.

Owns one window per function that was invoked, a handful of slots each; the oldest is dropped as time goes on. Counting is
O(1) and for every request. Quantiles are read from a logarithmic histogram, so they are right to a twentieth, whatever the
durations are. A slot is handed on once when it is over (`history` adds slots up to minutes). Pure; the caller brings the clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import nlargest
from math import log2
from typing import NamedTuple

import msgspec

SLOT_NS = 5_000_000_000
SLOTS = 12
WINDOW_NS = SLOT_NS * SLOTS
STEPS = 8
"""Buckets of the histogram from one power of two to the next."""


class Slot:
    """A few seconds of one function."""

    __slots__ = ("cold", "ends_ns", "failed", "started_ns", "took")

    def __init__(self, started_ns: int) -> None:
        self.started_ns = started_ns
        self.ends_ns = started_ns + SLOT_NS
        self.cold = self.failed = 0
        self.took: dict[int, int] = {}
        """How many took how long, by bucket."""

    @property
    def count(self) -> int:
        return sum(self.took.values())


class RecentRates(msgspec.Struct, frozen=True):
    """One function over the window; rates are per second, durations from a request's arrival to its answer."""

    count: int = 0
    rate: float = 0.0
    p50_ns: int = 0
    p99_ns: int = 0
    cold_share: float = 0.0
    failed: int = 0
    rates: tuple[float, ...] = ()
    """By slot, oldest first, as many as the window has; the newest is not over."""


NOTHING = RecentRates(rates=(0.0,) * SLOTS)


class Totals(NamedTuple):
    """All functions together over the window."""

    requests: int = 0
    cold: int = 0
    failed: int = 0


class Recent:
    """All functions."""

    def __init__(self, ended: Callable[[str, Slot], None] | None = None) -> None:
        """Args: ended: takes each slot of a function once, when the slot is over."""
        self._windows: dict[str, deque[Slot]] = {}
        self._current: dict[str, Slot] = {}
        """The newest of each window, unless it is over and handed on."""
        self._ended = ended
        self._over: dict[int, Totals] = {}
        """Slots that were handed on, added up by the moment at which they began."""

    def observe(self, name: str, ended_ns: int, took_ns: int, cold: bool, failed: bool) -> None:
        """Count an invocation that reached the function. Args: ended_ns: CLOCK_MONOTONIC."""
        slot = self._current.get(name)
        if slot is None or ended_ns >= slot.ends_ns:
            slot = self._begin(name, ended_ns)
        if cold:
            slot.cold += 1
        if failed:
            slot.failed += 1
        bucket = int(log2(took_ns or 1) * STEPS)
        took = slot.took
        try:
            took[bucket] += 1
        except KeyError:
            took[bucket] = 1

    def busiest(self, limit: int, now_ns: int) -> list[str]:
        """The functions that were invoked most, the first most."""
        since_ns = now_ns - WINDOW_NS
        # The last two slots only: this is asked again and again while somebody looks, whatever the number of functions.
        counts = {
            name: window[-1].count + (window[-2].count if len(window) > 1 else 0)
            for name, window in self._windows.items()
            if window[-1].started_ns > since_ns
        }
        return nlargest(limit, counts, key=counts.__getitem__)

    def rate(self, now_ns: int) -> float:
        """Invocations per second of all functions together, over the last slot that is over."""
        last_ns = now_ns - now_ns % SLOT_NS - SLOT_NS
        slots = (slot for window in self._windows.values() for slot in (window[-1], window[max(-2, -len(window))]))
        return sum({id(slot): slot.count for slot in slots if slot.started_ns == last_ns}.values()) * 1e9 / SLOT_NS

    def total(self, now_ns: int) -> Totals:
        """All functions together over the window, removed ones included. Takes a step for each function that is called."""
        newest_ns = now_ns - now_ns % SLOT_NS
        parts = [total for started_ns, total in self._over.items() if newest_ns - started_ns < WINDOW_NS]
        for slot in self._current.values():
            if newest_ns - slot.started_ns < WINDOW_NS:
                parts.append(Totals(slot.count, slot.cold, slot.failed))
        return Totals(*map(sum, zip(*parts, strict=True))) if parts else Totals()

    def settle(self, now_ns: int) -> None:
        """Hand on the slots that are over, also those of functions that were not called again."""
        for name, slot in [*self._current.items()]:
            if slot.ends_ns <= now_ns:
                del self._current[name]
                self._end(name, slot)

    def forget(self, name: str) -> None:
        """Drop a removed function's window."""
        self._windows.pop(name, None)
        if (slot := self._current.pop(name, None)) is not None:
            self._end(name, slot)

    def of(self, name: str, now_ns: int) -> RecentRates:
        """One function's last minute, all zero if it was not invoked."""
        newest_ns = now_ns - now_ns % SLOT_NS
        slots = [slot for slot in self._windows.get(name, ()) if newest_ns - slot.started_ns < WINDOW_NS]
        count = sum(slot.count for slot in slots)
        if not count:
            return NOTHING
        took = merged(slots)
        # A function that is called since a moment ago has the rate of that moment.
        over_s = max((now_ns - slots[0].started_ns) / 1e9, 1.0)
        rates = [0.0] * SLOTS
        for slot in slots:
            lasted_ns = SLOT_NS if slot.started_ns < newest_ns else max(now_ns - newest_ns, 1_000_000_000)
            rates[SLOTS - 1 - (newest_ns - slot.started_ns) // SLOT_NS] = slot.count * 1e9 / lasted_ns
        return RecentRates(
            count,
            count / over_s,
            quantile(took, 0.5),
            quantile(took, 0.99),
            sum(slot.cold for slot in slots) / count,
            sum(slot.failed for slot in slots),
            tuple(rates),
        )

    def _begin(self, name: str, now_ns: int) -> Slot:
        if (former := self._current.get(name)) is not None:
            self._end(name, former)
        window = self._windows.setdefault(name, deque(maxlen=SLOTS))
        slot = self._current[name] = Slot(now_ns - now_ns % SLOT_NS)
        window.append(slot)
        return slot

    def _end(self, name: str, slot: Slot) -> None:
        requests, cold, failed = self._over.get(slot.started_ns, Totals())
        self._over[slot.started_ns] = Totals(requests + slot.count, cold + slot.cold, failed + slot.failed)
        if len(self._over) > SLOTS:
            del self._over[min(self._over)]
        if self._ended is not None:
            self._ended(name, slot)


def merged(slots: Iterable[Slot]) -> dict[int, int]:
    """Their histograms as one."""
    took: dict[int, int] = {}
    for slot in slots:
        for bucket, count in slot.took.items():
            took[bucket] = took.get(bucket, 0) + count
    return took


def quantile(took: dict[int, int], share: float) -> int:
    """The duration in ns that this share of them does not exceed, give or take half a bucket; 0 of nothing."""
    left = share * sum(took.values())
    for bucket in sorted(took):
        left -= took[bucket]
        if left <= 0:
            return round(2 ** ((bucket + 0.5) / STEPS))
    return 0
