"""The events that are not over, by function and by the moment they are due: who goes next.

Owns the order, in memory; the store has the events. Pure but for its state: the caller passes the time, in seconds of
CLOCK_MONOTONIC, so that a wall clock that jumps neither delays what waits nor brings all of it at once.

    POLICY: functions take turns, whatever each has waiting; of one function, what is due longest goes first. One that
    has its places taken is passed over until one of its events has ended an attempt.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple

from sockd.events.event import Event


class Entry(NamedTuple):
    """An event, and when it was accepted on the clock of this daemon."""

    event: Event
    born: float


class EventQueue:
    """`push` and `take`, then `leave`, and `push` again or `drop`; never waits."""

    def __init__(self, places: Callable[[str], int]) -> None:
        """Args: places: how many events of a function may run at a time."""
        self._places = places
        self._entries: dict[int, Entry] = {}
        """All that are not over, in the order in which they came."""
        self._later: list[tuple[float, int]] = []
        self._ready: dict[str, deque[int]] = {}
        self._turns: OrderedDict[str, None] = OrderedDict()
        """Functions with something ready and a place free, in the order of their turns."""
        self._running: dict[str, int] = {}
        self.running: set[int] = set()
        """Numbers of the events that were taken."""
        self.size_bytes = 0
        """The bytes of all payloads."""
        self._sums: dict[str, tuple[int, int]] = {}
        """The number and the bytes of the events of each function."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, event: Event) -> bool:
        """Whether an event is here and not over."""
        return event.seq in self._entries

    def of(self, function: str) -> tuple[int, int]:
        """How many events of a function are not over, and the bytes of their payloads."""
        return self._sums.get(function, (0, 0))

    def entries(self) -> list[Entry]:
        """All that are not over, oldest first."""
        return list(self._entries.values())

    def oldest(self) -> Entry | None:
        """The one that came first."""
        return next(iter(self._entries.values()), None)

    def push(self, event: Event, *, due: float, born: float) -> None:
        """Have an event wait until it is due; one that was taken has left its place."""
        if event.seq not in self._entries:
            self._entries[event.seq] = Entry(event, born)
            self._count(event, 1)
        heapq.heappush(self._later, (due, event.seq))

    def take(self, now: float) -> Entry | None:
        """The next event that is due and has a place."""
        self._ripen(now)
        function = self._next_function()
        if function is None:
            return None
        ready = self._ready[function]
        seq = ready.popleft()
        if not ready:
            del self._ready[function]
        self.running.add(seq)
        self._running[function] = self._running.get(function, 0) + 1
        self.line_up(function)
        return self._entries[seq]

    def leave(self, event: Event) -> None:
        """Give back the place of an event that was taken."""
        self.running.discard(event.seq)
        self._running[event.function] -= 1
        if not self._running[event.function]:
            del self._running[event.function]
        self.line_up(event.function)

    def drop(self, event: Event) -> None:
        """Forget an event that is over; it is taken, or has left its place."""
        if self._entries.pop(event.seq, None) is not None:
            self._count(event, -1)

    def drop_function(self, function: str) -> None:
        """Forget the events of a function that wait; those that are taken end by themselves."""
        waiting = {
            seq for seq, entry in self._entries.items() if entry.event.function == function and seq not in self.running
        }
        for seq in waiting:
            self.drop(self._entries[seq].event)
        self._ready.pop(function, None)
        self._turns.pop(function, None)
        self._later = [(due, seq) for due, seq in self._later if seq not in waiting]
        heapq.heapify(self._later)

    def next_due(self) -> float | None:
        """When the next event is due that is not yet; None: there is none."""
        return self._later[0][0] if self._later else None

    def _count(self, event: Event, sign: int) -> None:
        count, size = self.of(event.function)
        self._sums[event.function] = (count + sign, size + sign * event.size)
        if not self._sums[event.function][0]:
            del self._sums[event.function]
        self.size_bytes += sign * event.size

    def _ripen(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            _, seq = heapq.heappop(self._later)
            function = self._entries[seq].event.function
            self._ready.setdefault(function, deque()).append(seq)
            self.line_up(function)

    def crowded(self) -> dict[str, int]:
        """Return how many events run or are due, of each function that has its places taken."""
        counts = {function: (self._running.get(function, 0), len(ready)) for function, ready in self._ready.items()}
        return {each: sum(count) for each, count in counts.items() if count[0] >= self._places(each)}

    def _next_function(self) -> str | None:
        """The function whose turn it is and that still has a place."""
        while self._turns:
            function, _ = self._turns.popitem(last=False)
            if self._running.get(function, 0) < self._places(function):
                return function
        return None

    def line_up(self, function: str) -> None:
        """Give a function its turn, after all others, if it can take one; to be called when it has more places, too."""
        if function in self._turns or function not in self._ready:
            return
        if self._running.get(function, 0) < self._places(function):
            self._turns[function] = None
