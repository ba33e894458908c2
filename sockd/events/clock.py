"""The time that events and schedules use, so that tests of hours take none.

Owns nothing. What waits in this process waits by CLOCK_MONOTONIC; Unix time is for people and for the next daemon.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """Something to come, which may be called off."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Two clocks and a timer."""

    def now(self) -> float:
        """Unix time, which may jump."""

    def monotonic(self) -> float:
        """Seconds that only grow."""

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Call it once so many seconds from now."""


class LoopClock:
    """The real one."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_s, callback)


async def pause(clock: Clock, delay_s: float, over: asyncio.Event | None = None) -> None:
    """Return after so many seconds, or when `over` is set."""
    over = over or asyncio.Event()
    timer = clock.call_later(delay_s, over.set)
    try:
        await over.wait()
    finally:
        timer.cancel()
