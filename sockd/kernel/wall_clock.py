"""A timer on the wall clock that also goes off when somebody sets the clock: timerfd_create(2), CLOCK_REALTIME.

Owns the descriptor. A timer of the event loop runs on CLOCK_MONOTONIC and would be late by as much as the clock was set
forward; TFD_TIMER_CANCEL_ON_SET has the kernel tell.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
from collections.abc import Callable

_libc = ctypes.CDLL(None, use_errno=True)
_CLOCK_REALTIME = 0
_TFD_TIMER_ABSTIME = 1
_TFD_TIMER_CANCEL_ON_SET = 2
_FAR_S = 1 << 33
"""Some centuries on: a timer has to be armed for the clock's being set to be told."""


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


class WallTimer:
    """Calls back at a moment, once, and whenever the clock is set. Belongs to the running event loop."""

    def __init__(self, callback: Callable[[bool], None]) -> None:
        """Args: callback: is told whether the clock was set. Raises: OSError."""
        # SAFETY: two plain ints in, a descriptor or -1 out.
        self._fd = _checked(_libc.timerfd_create(_CLOCK_REALTIME, os.O_NONBLOCK | os.O_CLOEXEC), "timerfd_create")
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._woken)

    def set(self, at: float | None) -> None:
        """Args: at: Unix time, which may have passed; None: only when the clock is set."""
        seconds = _FAR_S if at is None else max(at, 1e-3)  # 0 would disarm it
        whole = int(seconds)
        value = _Itimerspec(it_value=_Timespec(whole, int((seconds - whole) * 1e9)))
        flags = _TFD_TIMER_ABSTIME | _TFD_TIMER_CANCEL_ON_SET
        # SAFETY: the kernel reads the struct during the call and keeps no pointer.
        _checked(_libc.timerfd_settime(self._fd, flags, ctypes.byref(value), None), "timerfd_settime")

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


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result
