"""The gate of one function's starts: how many of its sandboxes initialize at the same time, and which requests wait for one.

    POLICY: inits that compete for the processors all end late, and the first of them latest. So no more begin at the same time
    than the processors have work for, by what the last init used; a request beyond waits, first in, first out, for

        an idle sandbox of its function    `offer`
        a place, when an init has ended    at once while no sandbox of the function serves; else only after requests have waited
                                           for as long as an init takes: until then an idle sandbox is likely to come
        its bound                          StartsBusy

    While free memory is too small for a further sandbox and the function has sandboxes that serve, no init begins: the start
    would only evict the first of these sandboxes that becomes idle. A request that has waited for as long as a start waits for
    memory begins one nevertheless.

Owns a count, a queue and timers. Knows nothing of sandboxes. For one event loop.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from sockd.base.errors import SockdError, StartsBusy

QUICK_S = 0.05
"""Inits that take less are not bounded: however many begin at the same time, none of them is late."""
LEAST_UNKNOWN = 2
"""Inits at the same time of a function of which nothing is known, on one processor."""
ROUNDED_DOWN = 0.25
"""The share of a further init: a processor with so little left to do gets none."""


@dataclass(frozen=True, slots=True)
class StartLimits:
    """What the gates of all functions have in common."""

    cpus: float = field(default_factory=lambda: float(len(os.sched_getaffinity(0))))
    """Processors that sandboxes can use together."""
    wait_s: float = 30.0
    """How long a request waits for a sandbox, in addition to the time limit of an init."""
    can_evict: Callable[[int], bool] = lambda size: False
    """Whether so many bytes of memory can be had from idle sandboxes and spares."""


class StartPlace:
    """The permission for one init, from the request for a sandbox until it is ready or gone. `end` gives it back."""

    __slots__ = ("_gate",)

    def __init__(self, gate: StartGate) -> None:
        self._gate: StartGate | None = gate

    def end(self, *, is_ready: bool = False) -> None:
        """Let another init begin. Safe to call twice. Args: is_ready: there is one more sandbox that serves."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.init_ended(is_ready=is_ready)


class Queued(NamedTuple):
    """When a request began to wait, and what ends it at the bound."""

    since_s: float
    bound: asyncio.TimerHandle


class StartWaiter(Protocol):
    """A request that waits at the gate. Compared by identity; it is in one queue, once."""

    @property
    def served_by(self) -> object | None:
        """The function whose idle sandboxes may serve it; None: it needs a new one."""

    def turn_to_start(self, place: StartPlace | None) -> bool:
        """Its turn: with a place, which it owns now, or because an idle sandbox is there.

        Returns: False: it needs neither any more."""

    def not_started(self, error: SockdError) -> None:
        """Handle that the request gets no sandbox."""


class StartGate:
    """Limits how many inits of one function begin, over all its versions. Every place that `try_start` or a turn gives is
    ended once.

    Invariant between loop iterations: if a request waits and a place is free, a timer or the next iteration gives it away."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: StartLimits,
        init_timeout_s: float,
        memory_wait_s: float,
        running: Callable[[], int],
        has_room: Callable[[], bool],
    ) -> None:
        """Args:
        memory_wait_s: how long a start waits for memory;
        running: how many requests of the function have been admitted, those that wait here included;
        has_room: whether there is memory for a sandbox of the function."""
        self._loop = loop
        self._limits = limits
        self._running = running
        self._has_room = has_room
        self._init_timeout_s = init_timeout_s
        self._memory_wait_s = memory_wait_s
        self.waiters: OrderedDict[StartWaiter, Queued] = OrderedDict()
        self.starting = 0
        self.limit: float = max(LEAST_UNKNOWN, math.ceil(limits.cpus))
        """Most inits at the same time."""
        self._init_s = 0.0
        """How long an init takes when nothing competes with it; 0: not known, or quick."""
        self._since_s = 0.0
        """Since when requests have waited although sandboxes serve."""
        self._has_served = False
        self._waking: asyncio.Handle | None = None

    @property
    def bound_s(self) -> float:
        """How long a request waits at most."""
        return self._limits.wait_s + self._init_timeout_s

    def change(self, init_timeout_s: float, memory_wait_s: float) -> None:
        """Set the time limits, for later requests."""
        self._init_timeout_s = init_timeout_s
        self._memory_wait_s = memory_wait_s

    def try_start(self) -> StartPlace | None:
        """A place for a request that has been admitted, if one is free and no other waits for it."""
        if self.waiters or self.starting >= self.limit:
            return None
        if self._serving() > 1 and not self._has_room():  # itself, and another
            return None
        self.starting += 1
        return StartPlace(self)

    def learn(self, init_s: float, cpu_s: float) -> None:
        """Note what an init took: in CPU time, and in wall-clock time without what it waited for a processor."""
        if init_s < QUICK_S:
            self.limit, self._init_s = math.inf, 0.0
            return
        at_once = self._limits.cpus * init_s / max(cpu_s, init_s / 1000)
        self.limit, self._init_s = max(1, math.ceil(at_once - ROUNDED_DOWN)), init_s

    def queue(self, waiter: StartWaiter) -> str:
        """Have a request wait. Returns: for what, in words."""
        is_first, now_s = not self.waiters, self._loop.time()
        self.waiters[waiter] = Queued(now_s, self._loop.call_later(self.bound_s, self._refuse, waiter))
        if is_first:
            self._since_s, self._has_served = now_s, self._serving() > 0
        self._wake_soon()
        if self.starting >= self.limit:
            return f"{self.starting} sandboxes of the function were starting, as many as the processors have work for"
        if not self._has_room():
            return "the worker had no memory for another sandbox of the function"
        return f"{len(self.waiters) - 1} other requests of the function waited before it"

    def give_up(self, waiter: StartWaiter) -> None:
        """Remove a request that waits."""
        self.waiters.pop(waiter).bound.cancel()
        self._wake_soon()

    def offer(self, function: object) -> None:
        """An idle sandbox of a function is there: the first request that it may serve takes it, in this call."""
        for waiter in [each for each in self.waiters if each.served_by is function]:
            self.waiters.pop(waiter).bound.cancel()
            if waiter.turn_to_start(None):
                break
        self._wake_soon()

    async def enter(self) -> StartPlace:
        """A place for a start that no request waits for. Raises: StartsBusy."""
        place = self.try_start()
        if place is not None:
            return place
        waiter = _WaitingTask(self._loop.create_future())
        self.queue(waiter)
        try:
            return await waiter.place
        except asyncio.CancelledError:
            if waiter in self.waiters:
                self.give_up(waiter)
            elif not waiter.place.cancelled() and waiter.place.exception() is None:
                waiter.place.result().end()  # it was given and cancelled in the same turn of the loop
            raise

    def init_ended(self, *, is_ready: bool) -> None:
        """As `StartPlace.end` says."""
        self.starting -= 1
        if self.waiters:
            if is_ready and not self._has_served:
                self._since_s, self._has_served = self._loop.time(), True
            self._wake_soon()

    def _wake_soon(self) -> None:
        """Not in this step, which may be that of a sandbox's frame."""
        if self.waiters and self.starting < self.limit:
            self._set_waking(self._loop.call_soon(self._wake))

    def _wake(self) -> None:
        """Give free places to those that waited longest."""
        self._set_waking(None)
        while self.waiters and self.starting < self.limit:
            waiter, queued = next(iter(self.waiters.items()))
            if waiter.served_by is not None and (patience_s := self._patience_s(queued)) > 0:
                self._set_waking(self._loop.call_later(patience_s, self._wake))
                return
            self.waiters.pop(waiter).bound.cancel()
            self.starting += 1
            waiter.turn_to_start(StartPlace(self))

    def _patience_s(self, queued: Queued) -> float:
        """How long it is better to wait for an idle sandbox than to start another."""
        if self._serving() <= 0:
            return 0.0
        now_s = self._loop.time()
        if not self._has_room():
            return queued.since_s + self._memory_wait_s - now_s
        return self._since_s + self._init_s - now_s

    def _serving(self) -> int:
        """Requests in sandboxes that have initialized."""
        return self._running() - len(self.waiters) - self.starting

    def _set_waking(self, waking: asyncio.Handle | None) -> None:
        if self._waking is not None:
            self._waking.cancel()
        self._waking = waking

    def _refuse(self, waiter: StartWaiter) -> None:
        del self.waiters[waiter]
        waiter.not_started(StartsBusy(self.bound_s, self.starting, math.ceil(self._init_s)))


class _WaitingTask:
    """A task in the queue; its future gets its place."""

    served_by = None

    def __init__(self, place: asyncio.Future[StartPlace]) -> None:
        self.place = place

    def turn_to_start(self, place: StartPlace | None) -> bool:
        assert place is not None
        if self.place.done():  # it was cancelled, and does not know it yet
            place.end()
            return False
        self.place.set_result(place)
        return True

    def not_started(self, error: SockdError) -> None:
        if not self.place.done():
            self.place.set_exception(error)
