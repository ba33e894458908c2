"""Signals held back while this thread makes a system call that they would spoil. Owns nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def blocked() -> Iterator[None]:
    """Meanwhile no signal comes to this thread; those that wait come at the end (pthread_sigmask(3))."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
