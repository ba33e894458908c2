"""The deadline of a sandbox's requests: one timer for many of them.

Creating and cancelling a timer of the loop takes longer than the sandbox's other work for a warm request. So the timer is not
cancelled with its request: if it fires before the current deadline, it is set again.

Owns the timer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

_NEVER = math.inf


class Deadline:
    """`set`, then `clear` in time or it has passed; `close` in the end."""

    __slots__ = ("_at_s", "_fires_s", "_loop", "_passed", "_shortened", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._at_s = self._fires_s = _NEVER
        self._passed: Callable[[], object] | None = None
        self._shortened: tuple[float, Callable[[], object] | None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, delay_s: float, passed: Callable[[], object]) -> None:
        """From now on, instead of what was set before. Args: passed: called once if it passes; it is cleared then."""
        self._at_s = self._loop.time() + delay_s
        self._passed = passed
        self._shortened = None
        if self._at_s < self._fires_s:
            self._start(delay_s)

    def shorten(self, delay_s: float, passed: Callable[[], object]) -> None:
        """As `set`, but no later than what was set before, to which `restore` goes back."""
        before = self._at_s, self._passed
        self.set(min(delay_s, self.left_s()), passed)
        self._shortened = before

    def restore(self) -> None:
        """What was set before `shorten`, if that is what is set now."""
        if self._shortened is not None:
            (self._at_s, self._passed), self._shortened = self._shortened, None

    def clear(self) -> None:
        """Forget the deadline, which was kept."""
        self._at_s = _NEVER
        self._passed = self._shortened = None

    def left_s(self) -> float:
        """Until it passes; infinite while none is set."""
        return self._at_s - self._loop.time()

    def close(self) -> None:
        """Never pass. Safe to call twice."""
        self.clear()
        self._stop()

    def _start(self, delay_s: float) -> None:
        self._stop()
        self._fires_s = self._at_s
        self._timer = self._loop.call_later(delay_s, self._look)

    def _stop(self) -> None:
        self._fires_s = _NEVER
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """The timer has fired: for the deadline that is set, or for one that was."""
        self._stop()
        passed, left_s = self._passed, self.left_s()
        if passed is None:
            return
        if left_s > 0:
            self._start(left_s)
            return
        self.clear()
        passed()
