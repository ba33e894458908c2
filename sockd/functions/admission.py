"""Admission: who of a function's requests may run now, who waits, and who is turned away.

Owns a count and a queue; knows nothing of sandboxes. Fairness: strictly first in, first out. A request enters at once
only when nobody waits, and a freed place is handed to the longest waiter before anyone else can ask for it. All who
fit are called together.

    if not admission.try_enter():
        admission.queue(waiter)         # TooManyRequests at once when the queue is full; else its turn comes
    ...
    admission.leave()

For one event loop; no method may be called from another thread.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

from sockd.plain.errors import Draining, SockdError, TooManyRequests


class Waiter(Protocol):
    """One who waits for a place. By identity: it stands in one queue, once."""

    def turn_came(self) -> None:
        """The place is its own: it owes a `leave`, also if nobody wants it any more."""

    def refused(self, error: SockdError) -> None:
        """There will be none. In the step of who has found that out, so it may only be noted."""


class Admission:
    """The door of one function. Every entry is paired with one `leave`.

    `running`, `concurrency`, `queue_depth` and `closed` are to be read, not set.

    True between any two steps of the loop: `running` <= the largest concurrency since the last moment of rest, and if
    anybody waits, then `running` >= `concurrency`."""

    __slots__ = ("_idle", "_waiters", "closed", "concurrency", "queue_depth", "running")

    def __init__(self, concurrency: int, queue_depth: int) -> None:
        """
        Args:
            concurrency: requests that run at the same time; 0: none, and nobody waits for better times.
            queue_depth: requests that wait, at least 0."""
        self.concurrency = concurrency
        self.queue_depth = queue_depth
        self.running = 0
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()
        self.closed = False
        self._idle: asyncio.Event | None = None

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiters)

    def try_enter(self) -> bool:
        """Enters if that needs no waiting. On True the caller owes a `leave`."""
        if self.running < self.concurrency and not self._waiters and not self.closed:
            self.running += 1
            return True
        return False

    def queue(self, waiter: Waiter) -> None:
        """Have one wait who could not enter.

        Raises: TooManyRequests at once when the queue is full; Draining after `drain` or `close`."""
        if self.closed:
            raise Draining("the function takes no new requests; try again")
        if not self.concurrency:
            raise _switched_off()
        if len(self._waiters) >= self.queue_depth:
            raise TooManyRequests(
                f"{self.concurrency} requests are running and {len(self._waiters)} waiting, which are the function's "
                "concurrency and queue_depth"
            )
        self._waiters[waiter] = None

    def give_up(self, waiter: Waiter) -> bool:
        """Wait no longer; False: its turn has been given to it, and comes."""
        if waiter not in self._waiters:
            return False
        del self._waiters[waiter]
        self._check_idle()
        return True

    def leave(self) -> None:
        """Gives the place back. The longest waiter has it when this returns, and is told in another step of the loop."""
        if self.running <= 0:
            raise RuntimeError("leave without enter")
        self.running -= 1
        if self._waiters:
            self._wake()
        self._check_idle()

    def hand_over(self) -> None:
        """`leave`, as the last thing that one who leaves does: the longest waiter goes on in the same step of the loop."""
        if self._waiters and 0 < self.running <= self.concurrency:
            self._waiters.popitem(last=False)[0].turn_came()
        else:
            self.leave()

    def resize(self, concurrency: int, queue_depth: int) -> None:
        """Sets new limits. Nobody who runs or waits is turned away: smaller limits hold for those who come later. But
        with a concurrency of 0 those who wait are, with TooManyRequests: their turn would never come."""
        self.concurrency = concurrency
        self.queue_depth = queue_depth
        if not concurrency:
            waiters, self._waiters = self._waiters, OrderedDict()
            for waiter in waiters:
                waiter.refused(_switched_off())
            self._check_idle()
        self._wake()

    def close(self) -> None:
        """From now on everybody who comes is refused with Draining. Those who run or wait are still served."""
        self.closed = True

    async def drain(self) -> None:
        """Closes, and returns when nobody runs or waits. Cancelling it opens nothing again."""
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
    return TooManyRequests("the function's concurrency is 0: it is switched off")
