"""A model of cells of workers behind HAProxy: which call finds an idle sandbox, and what the store of a cell has to do.

Assumed are:
- one front hashes functions to cells, and HAProxy of each cell chooses a worker as `sockd cluster haproxy` has it: the home of
  the function while it has fewer than HOME_CALLS; else, as HAProxy's sources do, the next on a ring with 16 nodes for each
  server, of which one is passed over that has its share of (calls under way + 1) * bound / 100;
- a worker keeps idle sandboxes while it has places, and ends the one that is idle for longest when it needs one;
- a call takes longer than its function by a constant, a cold one by another; workers never wait for processors.

Pure: no clock but the trace's, and nothing random but the trace.
"""

from __future__ import annotations

import hashlib
import heapq
from bisect import bisect
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.cluster_parts.zipf_trace import Call

NODES = 16
"""Nodes of a server on the ring."""
ROUND_ROBIN, NO_BOUND = -1, 0
"""In place of a bound: the workers in turns; the first on the ring, always."""
HOME_CALLS = 32
PLACES, MANY_PLACES, MANY_WORKERS = 256, 4096, 16
"""As in HAProxy's file."""


@dataclass(slots=True, eq=False)
class ModelWorker:
    """One worker: how many sandboxes of which function it has."""

    places: int
    """Sandboxes for which it has memory."""
    running: int = 0
    idle_count: int = 0
    calls: int = 0
    idle: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """Idle sandboxes of each function, the one first that ended its last call longest ago."""
    opened: set[int] = field(default_factory=set)

    def begin(self, function: int) -> bool:
        """Begin a call; whether it is cold."""
        self.running += 1
        self.calls += 1
        self.opened.add(function)
        if count := self.idle.get(function, 0):
            self._take(function, count)
            return False
        if self.running + self.idle_count > self.places and self.idle:
            oldest = next(iter(self.idle))
            self._take(oldest, self.idle[oldest])
        return True

    def end(self, function: int) -> None:
        """End a call: its sandbox is idle."""
        self.running -= 1
        self.idle_count += 1
        self.idle[function] = self.idle.pop(function, 0) + 1

    def _take(self, function: int, count: int) -> None:
        self.idle_count -= 1
        if count > 1:
            self.idle[function] = count - 1
        else:
            del self.idle[function]


class ModelFront:
    """HAProxy's choice of a worker."""

    def __init__(self, workers: Sequence[ModelWorker], bound_percent: int, home_calls: int) -> None:
        """Args: bound_percent: or NO_BOUND, ROUND_ROBIN; home_calls: 0: no function has a home."""
        self._workers = workers
        self._bound = bound_percent
        self._home_calls = home_calls
        self._served = self._turn = 0
        nodes = sorted(
            (_hash(f"server {number} {node}"), number) for number in range(len(workers)) for node in range(NODES)
        )
        self._at = [at for at, _ in nodes]
        self._who = [number for _, number in nodes]
        self._first: dict[int, int] = {}
        places = MANY_PLACES if len(workers) > MANY_WORKERS else PLACES
        numbers = range(len(workers))
        self._homes = [max(numbers, key=lambda number: _hash(f"place {place} {number}")) for place in range(places)]

    def begin(self, function: int) -> ModelWorker:
        """Choose the worker of a call, which begins."""
        chosen = self._chosen(function)
        self._served += 1
        return self._workers[chosen]

    def end(self) -> None:
        """One call has ended."""
        self._served -= 1

    def _chosen(self, function: int) -> int:
        if self._bound == ROUND_ROBIN:
            self._turn += 1
            return self._turn % len(self._workers)
        if self._home_calls:
            home = self._homes[function % len(self._homes)]
            if self._workers[home].running < self._home_calls:
                return home
        node = self._first.get(function)
        if node is None:
            node = self._first[function] = bisect(self._at, _hash(f"function {function}")) % len(self._at)
        if not self._bound:
            return self._who[node]
        slots = ((self._served + 1) * self._bound + 99) // 100
        for step in range(len(self._who)):
            number = self._who[(node + step) % len(self._who)]
            if self._workers[number].running < self._share(slots, number):
                return number
        return self._who[node]

    def _share(self, slots: int, number: int) -> int:
        """Return the part of the slots that a server has: the remainder goes by its place in the list."""
        each, rest = divmod(slots, len(self._workers))
        more = (number + 1) * rest // len(self._workers) - number * rest // len(self._workers)
        return max(each + more, 1)


@dataclass(frozen=True, slots=True)
class Played:
    """What became of a trace."""

    calls: int
    cold: int
    most_calls: int
    """Calls of the worker that had most."""
    opened: int
    """Functions that the worker has opened which opened most."""
    most_running: int

    @property
    def share(self) -> float:
        return self.cold / self.calls


def play(
    trace: Iterable[Call],
    workers: int,
    *,
    places: int,
    cold_s: float,
    warm_s: float = 0.0,
    bound_percent: int = 150,
    home_calls: int = HOME_CALLS,
) -> Played:
    """Play a trace. Args: places: sandboxes of each worker; cold_s, warm_s: by which calls are longer; others: `ModelFront`."""
    there = [ModelWorker(places) for _ in range(workers)]
    front, under_way = ModelFront(there, bound_percent, home_calls), list[tuple[float, int, int, ModelWorker]]()
    calls = cold = most_running = 0
    for call in trace:
        while under_way and under_way[0][0] <= call.at_s:
            _, _, function, worker = heapq.heappop(under_way)
            worker.end(function)
            front.end()
        worker = front.begin(call.function)
        is_cold = worker.begin(call.function)
        calls, cold = calls + 1, cold + is_cold
        most_running = max(most_running, len(under_way) + 1)
        heapq.heappush(
            under_way, (call.at_s + call.seconds + (cold_s if is_cold else warm_s), calls, call.function, worker)
        )
    most_calls = max(worker.calls for worker in there)
    return Played(calls, cold, most_calls, max(len(worker.opened) for worker in there), most_running)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
