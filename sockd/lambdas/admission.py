"""Admission: who of a function's requests may run now, who waits, and who is turned away.

Owns a count and a queue; knows nothing of sandboxes. Fairness: strictly first in, first out. A request enters at once
only when nobody waits, and a freed place is handed to the longest waiter before anyone else can ask for it. All who
fit are woken together.

    if not admission.try_enter():       # no await, no future
        await admission.wait()          # TooManyRequests at once when the queue is full
    try: ...
    finally: admission.leave()

For one event loop; no method may be called from another thread.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from types import TracebackType

from sockd.errors import Draining, TooManyRequests


class Admission:
    """The door of one function. Every entry is paired with one `leave`; `enter` does the pairing.

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
        self._waiters: OrderedDict[asyncio.Future[None], None] = OrderedDict()
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

    async def wait(self) -> None:
        """Enters, after waiting for a turn if need be. On return the caller owes a `leave`; cancelled, it owes nothing.

        Raises: TooManyRequests at once when the queue is full; Draining after `drain` or `close`."""
        if self.try_enter():
            return
        turn = self.queue()
        try:
            await turn
        except BaseException:
            self.give_up(turn)
            raise

    def queue(self) -> asyncio.Future[None]:
        """A turn in the queue, for one who could not enter: it is done when the place is the caller's, who owes a `leave`
        then, or fails with TooManyRequests. Who gives it up calls `give_up`.

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
        turn = asyncio.get_running_loop().create_future()
        self._waiters[turn] = None
        return turn

    def give_up(self, turn: asyncio.Future[None]) -> None:
        """Wait no longer."""
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self.leave()  # the turn came in the same step of the loop: pass it on
        else:
            turn.cancel()
            self._waiters.pop(turn, None)
            self._check_idle()

    def leave(self) -> None:
        """Gives the place back; the longest waiter has it when this returns."""
        if self.running <= 0:
            raise RuntimeError("leave without enter")
        self.running -= 1
        if self._waiters:
            self._wake()
        self._check_idle()

    def enter(self) -> Admission:
        """`async with admission.enter(): ...` enters and leaves. It has no state of its own, hence no object either."""
        return self

    async def __aenter__(self) -> None:
        if not self.try_enter():
            await self.wait()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def resize(self, concurrency: int, queue_depth: int) -> None:
        """Sets new limits. Nobody who runs or waits is turned away: smaller limits hold for those who come later. But
        with a concurrency of 0 those who wait are, with TooManyRequests: their turn would never come."""
        self.concurrency = concurrency
        self.queue_depth = queue_depth
        if not concurrency:
            for turn in self._waiters:
                if not turn.done():
                    turn.set_exception(_switched_off())
            self._waiters.clear()
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
        while self._waiters and self.running < self.concurrency:
            turn, _ = self._waiters.popitem(last=False)
            if not turn.done():  # done: cancelled, in this very step of the loop
                self.running += 1
                turn.set_result(None)

    def _check_idle(self) -> None:
        if self._idle is not None and not self.running and not self._waiters:
            self._idle.set()


def _switched_off() -> TooManyRequests:
    return TooManyRequests("the function's concurrency is 0: it is switched off")
