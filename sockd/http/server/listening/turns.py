"""The order in which bytes are parsed, when more have come than one turn of the loop should take.

A turn takes a bounded amount of work, and what is left waits in a queue for each target that its connections asked for
last: in every turn, one of each queue goes before the second of any. So a thousand requests that come at once for one
function delay those of another by a turn, not by a thousand.

    POLICY: one of each queue before the second of any, until the connection that has waited longest has been overtaken by
    as many turns as `OVERTAKEN` allows; then it is next. So where clients ask for one function and then for another, no
    request waits much longer than in order of arrival. A crowd, a queue of `CROWD` and more, may be overtaken without end.

Between two turns the processor is offered to whom the kernel
has put behind us, such as the sandbox of one that has had its turn: it would wait for a tick of the clock, up to 4 ms.

Owns the queues. Knows nothing of HTTP: it asks a connection for its place, and calls it when it may continue.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import OrderedDict, deque
from typing import Protocol

UNITS = 1
"""The units of work in one turn: one is a request, or UNIT_BYTES of a body. Either costs 0.02 to 0.1 ms of the loop, and a
warm request waits for two turns of the loop; what a turn costs by itself is too little to be seen in throughput."""
UNIT_BYTES = 8 * 1024
OVERTAKEN = 0.3
"""How many turns may be taken by those that came later, as a share of those who waited when a connection came."""
OVERTAKEN_BY_FEW = 4
"""How many more, since a share of few is nothing."""
CROWD = 128
"""Connections in one queue that are a crowd."""
PLACES = 64
"""Queues at most: targets share them, so that many targets are no way to many turns."""


class Waiting(Protocol):
    """A connection that has bytes to be looked at."""

    def place(self) -> int:
        """Which queue is its: 0 to PLACES - 1."""

    def go_on(self) -> int:
        """Look at them; returns how many units that was."""


class _Wait:
    """One connection in a queue, once."""

    __slots__ = ("due", "is_over", "place", "waiting")

    def __init__(self, waiting: Waiting, place: int, due: float) -> None:
        self.waiting = waiting
        self.place = place
        """Which queue it is in: another than `waiting.place`, if that has changed."""
        self.due = due
        """The number of the turn from which on it is overtaken no more."""
        self.is_over = False


class Turns:
    """The turns of one server's connections."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._left = UNITS
        """Units that are left in this turn."""
        self._is_ending = False
        self.is_taken = False
        """Right now, by one that waited: what it reads is its own turn's."""
        self._queues: OrderedDict[int, deque[_Wait]] = OrderedDict()
        """By place, the one that is next first; none is empty."""
        self._in_order: deque[_Wait] = deque()
        """All of the queues in order of arrival, and some that are over."""
        self._waiting = 0
        """How many are in the queues."""
        self._turn = 0
        """How many have had their turn since the start."""

    def may_go(self, waiting: Waiting) -> bool:
        """Whether a small chunk may be looked at right now; it is counted then."""
        if self._left <= 0 or (self._queues and (waiting.place() in self._queues or self._is_one_due())):
            return False
        self._left -= 1
        self._turn += 1
        if not self._is_ending:
            self._end_soon()
        return True

    def wait(self, waiting: Waiting) -> None:
        """Have it go on when its turn has come, which is soon."""
        place = waiting.place()
        queue = self._queues.get(place)
        if queue is None:
            queue = self._queues[place] = deque()
        is_crowd = len(queue) >= CROWD
        due = math.inf if is_crowd else self._turn + self._waiting * (1 + OVERTAKEN) + OVERTAKEN_BY_FEW
        wait = _Wait(waiting, place, due)
        queue.append(wait)
        self._in_order.append(wait)
        self._waiting += 1
        if not self._is_ending:
            self._end_soon()

    def _end_soon(self) -> None:
        self._is_ending = True
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        """A turn begins, with those who wait."""
        self._left = units = UNITS
        self.is_taken = True
        try:
            while self._queues and units > 0:
                units -= self._take_next().go_on()
        finally:
            self.is_taken = self._is_ending = False
            if self._queues:
                self._end_soon()
                os.sched_yield()

    def _take_next(self) -> Waiting:
        """Take the one that is next out of its queue, which becomes the last."""
        place = self._in_order[0].place if self._is_one_due() else next(iter(self._queues))
        queue = self._queues.pop(place)
        wait = queue.popleft()
        if queue:
            self._queues[place] = queue
        wait.is_over = True
        self._waiting -= 1
        self._turn += 1
        if not self._waiting:
            self._in_order.clear()
        return wait.waiting

    def _is_one_due(self) -> bool:
        """Whether the one that has waited longest is to be overtaken no more."""
        while self._in_order[0].is_over:
            self._in_order.popleft()
        return self._in_order[0].due <= self._turn
