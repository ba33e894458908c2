"""A guest thread's alarm: what ends the run in it when that has been at work for too long.

Set by the thread, heard on the loop, which need not be woken for it to be set. Owns a timer's descriptor.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from initscripts.watched import Watched
from sockd.kernel import timerfd


class Alarm:
    """Made and closed on the loop. One thread sets it, for one thing at a time."""

    def __init__(self, watched: Watched) -> None:
        """Raises: OSError, out of descriptors."""
        self._watched = watched
        self._fd = timerfd.create()
        self._set: tuple[float, Callable[[], None]] | None = None
        watched.add(self._fd, self._look)

    def set(self, seconds: float, function: Callable[[], None]) -> None:
        """Have this called on the loop after so long, unless it is cleared before."""
        self._set = (time.monotonic() + seconds, function)
        timerfd.set_once(self._fd, seconds)

    def clear(self) -> None:
        """What was set is over. It may be called all the same, if its time has come just now."""
        timerfd.set_once(self._fd, 0)
        self._set = None

    def close(self) -> None:
        """Once nobody sets it any more."""
        self._watched.remove(self._fd)
        os.close(self._fd)

    def _look(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # cleared in the meantime
            return
        due = self._set
        # It may be the next one's by now, whose time has not come.
        if due is not None and due[0] <= time.monotonic():
            due[1]()
