"""Admission control: which requests of a function run, wait or are refused.

Owns a count and a queue; knows nothing of sandboxes. Order: strictly first in, first out. A request enters at once
only if no request waits; a freed slot goes to the request that has waited longest. `leave` admits all
requests that fit.

    if not admission.try_enter():
        admission.queue(waiter)         # raises TooManyRequests if the queue is full; otherwise calls the waiter later
    ...
    admission.leave()

For one event loop; no method may be called from another thread.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from sockd.base.errors import Draining, SockdError, TooManyRequests


class Waiter(Protocol):
    """A queued request. Compared by identity; it is in one queue, once."""

    def turn_came(self) -> None:
        """Run with the slot, and call `leave` at the end, also if the request was cancelled."""

    def refused(self, error: SockdError) -> None:
        """Handle the refusal of a slot. Called synchronously, so it may only record the error."""


class Admission:
    """The admission queue of one function. Every entry is paired with one `leave`.

    Do not set `running`, `concurrency`, `queue_depth` and `closed`.

    Invariants between loop iterations: `running` <= the largest concurrency since no request ran, and if a request
    waits, then `running` >= `concurrency`."""

    __slots__ = ("_idle", "_short", "_waiters", "closed", "concurrency", "queue_depth", "running")

    def __init__(self, concurrency: int, queue_depth: int, short: Callable[[int], None] = lambda count: None) -> None:
        """
        Args:
            concurrency: requests that run at the same time; 0: every request is refused.
            queue_depth: requests that wait, at least 0.
            short: called when a request does not run at once, with how many run or wait."""
        self.concurrency = concurrency
        self.queue_depth = queue_depth
        self.running = 0
        self._short = short
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()
        self.closed = False
        self._idle: asyncio.Event | None = None

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiters)

    def try_enter(self) -> bool:
        """Enter if a slot is free. On True the caller must call `leave`."""
        if self.running < self.concurrency and not self._waiters and not self.closed:
            self.running += 1
            return True
        return False

    def queue(self, waiter: Waiter) -> None:
        """Queue a request.

        Raises: TooManyRequests at once when the queue is full; Draining after `drain` or `close`."""
        if self.closed:
            raise Draining("the function takes no new requests; try again")
        if not self.concurrency:
            raise _switched_off()
        self._short(self.running + len(self._waiters) + 1)
        if len(self._waiters) >= self.queue_depth:
            raise TooManyRequests(
                f"{self.concurrency} requests are running and {len(self._waiters)} waiting, which are the function's "
                "concurrency and queue_depth on this worker"
            )
        self._waiters[waiter] = None

    def give_up(self, waiter: Waiter) -> bool:
        """Remove a request from the queue; False: it already has a slot."""
        if waiter not in self._waiters:
            return False
        del self._waiters[waiter]
        self._check_idle()
        return True

    def leave(self) -> None:
        """Release the slot. The next request has it when this returns, and is called in a later loop iteration."""
        if self.running <= 0:
            raise RuntimeError("leave without enter")
        self.running -= 1
        if self._waiters:
            self._wake()
        elif self._idle is not None:
            self._check_idle()

    def resize(self, concurrency: int, queue_depth: int) -> None:
        """Set new limits. They apply to later requests; running and waiting requests stay. A concurrency of 0 refuses waiting
        requests with TooManyRequests."""
        self.concurrency = concurrency
        self.queue_depth = queue_depth
        if not concurrency:
            waiters, self._waiters = self._waiters, OrderedDict()
            for waiter in waiters:
                waiter.refused(_switched_off())
            self._check_idle()
        self._wake()

    def close(self) -> None:
        """Refuse new requests with Draining. Running and waiting requests are still served."""
        self.closed = True

    async def drain(self) -> None:
        """Close, and wait until no request runs or waits. Cancelling the call does not reopen."""
        self.close()
        if self._idle is None:
            self._idle = asyncio.Event()
        self._check_idle()
        await self._idle.wait()

    def _wake(self) -> None:
        """Not in this step: it may be one of many, or be the end of a request that was refused as those before it."""
        while self._waiters and self.running < self.concurrency:
            waiter, _ = self._waiters.popitem(last=False)
            self.running += 1
            asyncio.get_running_loop().call_soon(waiter.turn_came)

    def _check_idle(self) -> None:
        if self._idle is not None and not self.running and not self._waiters:
            self._idle.set()


def _switched_off() -> TooManyRequests:
    return TooManyRequests("the function is disabled: its concurrency is 0")
