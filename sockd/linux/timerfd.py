"""Timers that are descriptors: timerfd_create(2), timerfd_settime(2). The caller that made one closes it."""

from __future__ import annotations

import ctypes
import os
import time

TFD_TIMER_ABSTIME = 1
TFD_TIMER_CANCEL_ON_SET = 2
_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


def create(clock: int = time.CLOCK_MONOTONIC) -> int:
    """A timer that is off, and that is not waited for when it is read. Raises: OSError."""
    # SAFETY: two plain ints in, a descriptor or -1 out.
    return _checked(_libc.timerfd_create(clock, os.O_NONBLOCK | os.O_CLOEXEC), "timerfd_create")


def set_once(fd: int, seconds: float, flags: int = 0) -> None:
    """Have it go off once, after so long or, with TFD_TIMER_ABSTIME, at that moment; 0: off, as if it never had. From any
    thread. Raises: OSError."""
    whole = int(seconds)
    value = _Itimerspec(it_value=_Timespec(whole, int((seconds - whole) * 1e9)))
    # SAFETY: the kernel reads the struct during the call and keeps no pointer.
    _checked(_libc.timerfd_settime(fd, flags, ctypes.byref(value), None), "timerfd_settime")


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result
