"""Guest threads' alarms: what ends the run in a thread when that has been at work for too long.

One timer for all of them, which goes off when the first may be late and is then set for the next: a run that begins while it is
set for an earlier moment costs no system call, nor does its end. Set by threads, heard on the loop, which need not be woken for
that. Owns the timer's descriptor.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable

from sockd.linux import timerfd
from sockd_initscripts.engine.watched import Watched


class Alarm:
    """One thread's; it sets it for one thing at a time."""

    def __init__(self, timer: AlarmTimer) -> None:
        self._timer = timer
        self._set: _Due | None = None

    def set(self, seconds: float, function: Callable[[], float]) -> None:
        """Have this called on the loop after so long, and again after as many seconds as it returns each time, unless it is
        cleared before. Raises: OSError."""
        due_s = time.monotonic() + seconds
        self._set = _Due(due_s, function)
        self._timer.need(due_s)

    def clear(self) -> None:
        """What was set is over. It may be called all the same, if its time has come just now."""
        self._set = None

    def look(self, now_s: float) -> float:
        """On the loop: call what is due; when to look again."""
        due = self._set
        if due is None:
            return math.inf
        if due.at_s <= now_s:
            # What the thread has set meanwhile is another one, which this does not change.
            due.at_s = now_s + due.function()
        return due.at_s


class _Due:
    """What an alarm is set for."""

    __slots__ = ("at_s", "function")

    def __init__(self, at_s: float, function: Callable[[], float]) -> None:
        self.at_s = at_s
        self.function = function


class AlarmTimer:
    """Made and closed on the loop."""

    def __init__(self, watched: Watched) -> None:
        """Raises: OSError, out of descriptors."""
        self._watched = watched
        self._fd = timerfd.create()
        self._lock = threading.Lock()
        self._alarms: list[Alarm] = []
        self._due_s = math.inf
        """When it goes off. Who sets an alarm writes that first and looks here then; the loop does it the other way round."""
        watched.add(self._fd, self._look)

    def alarm(self) -> Alarm:
        """One more."""
        self._alarms.append(made := Alarm(self))
        return made

    def need(self, due_s: float) -> None:
        """In any thread: go off at this moment (time.monotonic) or before. Raises: OSError."""
        if due_s < self._due_s:
            with self._lock:
                if due_s < self._due_s:
                    # At least a nanosecond ahead: 0 is off.
                    timerfd.set_once(self._fd, max(due_s - time.monotonic(), 1e-9))
                    self._due_s = due_s

    def close(self) -> None:
        """Once no alarm is set any more."""
        self._watched.remove(self._fd)
        os.close(self._fd)

    def _look(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # it was set anew in the meantime
            return
        with self._lock:
            self._due_s = math.inf
        now_s = time.monotonic()
        next_s = min((alarm.look(now_s) for alarm in self._alarms), default=math.inf)
        if next_s < math.inf:
            self.need(next_s)
