"""A clock that goes when the test says so: seconds of CLOCK_MONOTONIC and Unix time, which may be set apart."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable


class FakeTimer:
    """What `call_later` gives."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """`sockd.events.clock.Clock`; `pass_by` lets time pass, `jump` sets the wall clock."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._monotonic = 1000.0
        self._offset = now - 1000.0
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._numbers = itertools.count()
        self._alarms: list[FakeAlarm] = []

    def now(self) -> float:
        return self._monotonic + self._offset

    def monotonic(self) -> float:
        return self._monotonic

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> FakeTimer:
        timer = FakeTimer(callback)
        heapq.heappush(self._timers, (self._monotonic + delay_s, next(self._numbers), timer))
        return timer

    def jump(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self._offset += seconds
        for alarm in list(self._alarms):
            alarm.callback(True)

    def alarm(self, callback: Callable[[bool], None]) -> FakeAlarm:
        """As `sockd.linux.wall_clock.WallTimer`."""
        alarm = FakeAlarm(self, callback)
        self._alarms.append(alarm)
        return alarm

    def drop(self, alarm: FakeAlarm) -> None:
        """Forget an alarm that is closed."""
        self._alarms.remove(alarm)

    def pass_by(self, seconds: float) -> None:
        """Let time pass, and call what is due meanwhile, each at its moment."""
        ends = self._monotonic + seconds
        while self._timers and self._timers[0][0] <= ends:
            moment, _, timer = heapq.heappop(self._timers)
            self._monotonic = max(self._monotonic, moment)
            if timer.callback is not None:
                timer.callback()
        self._monotonic = ends

    def next_in(self) -> float | None:
        """Seconds until the next timer."""
        live = [moment for moment, _, timer in self._timers if timer.callback is not None]
        return min(live) - self._monotonic if live else None


class FakeAlarm:
    """A timer on the wall clock of a FakeClock."""

    def __init__(self, clock: FakeClock, callback: Callable[[bool], None]) -> None:
        self._clock = clock
        self._timer: FakeTimer | None = None
        self.callback = callback
        self.at: float | None = None

    def set(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.at = at
        if at is not None:
            self._timer = self._clock.call_later(max(at - self._clock.now(), 0.0), lambda: self.callback(False))

    def close(self) -> None:
        self.set(None)
        self._clock.drop(self)


async def until(condition: Callable[[], object]) -> None:
    """Let the loop and the threads go on until something is so."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.to_thread(lambda: None)
