"""A timer on the wall clock that also goes off when somebody sets the clock: timerfd_create(2), CLOCK_REALTIME.

Owns the descriptor. A timer of the event loop runs on CLOCK_MONOTONIC and would be late by as much as the clock was set
forward; TFD_TIMER_CANCEL_ON_SET has the kernel tell.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable

from sockd.linux import timerfd

_FAR_S = 1 << 33
"""Some centuries on: a timer has to be armed to be notified that the clock was set."""


class WallTimer:
    """Calls back at a moment, once, and whenever the clock is set. Belongs to the running event loop."""

    def __init__(self, callback: Callable[[bool], None]) -> None:
        """Args: callback: called with whether the clock was set. Raises: OSError."""
        self._fd = timerfd.create(time.CLOCK_REALTIME)
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._woken)

    def set(self, at: float | None) -> None:
        """Args: at: Unix time, which may have passed; None: only when the clock is set."""
        seconds = _FAR_S if at is None else max(at, 1e-3)  # 0 would disarm it
        timerfd.set_once(self._fd, seconds, timerfd.TFD_TIMER_ABSTIME | timerfd.TFD_TIMER_CANCEL_ON_SET)

    def close(self) -> None:
        """Safe to call twice."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _woken(self) -> None:
        was_set = False
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ECANCELED:
                raise
            was_set = True
        self._callback(was_set)
