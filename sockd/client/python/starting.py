"""Waiting for a worker that is starting: it has the lock of its state directory already, and does not listen yet.

Pure but for looking at /proc/locks, which every user can read. Owns nothing.
"""

from __future__ import annotations

import os
import select
import time
from pathlib import Path
from typing import NamedTuple

LOCKS = "/proc/locks"
_POLL_S = 0.02


class Patience(NamedTuple):
    """How long a connection waits for a worker that does not listen."""

    starting_s: float = 10.0
    """If a process has the state directory's lock."""
    absent_s: float = 0.0
    """If none has."""


PATIENCE = Patience()


class Waiting:
    """One connection's patience, from now on."""

    def __init__(self, state_dir: Path, patience: Patience) -> None:
        self._state_dir = state_dir
        self._patience = patience
        self._began = time.monotonic()

    def pause(self) -> bool:
        """Whether to try again, after a moment: there is no event of a socket that begins to listen."""
        waited = time.monotonic() - self._began
        is_worth_it = waited < self._patience.absent_s or (
            waited < self._patience.starting_s and is_locked(self._state_dir)
        )
        if is_worth_it:
            select.poll().poll(_POLL_S * 1000)
        return is_worth_it


def is_locked(state_dir: Path) -> bool:
    """Whether a worker has this state directory. Never takes the lock itself: a worker that starts would find it taken."""
    try:
        found = os.stat(state_dir / "lock")
        with open(LOCKS) as locks:
            file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
            return any(file in line.split() for line in locks)
    except OSError:
        return False
