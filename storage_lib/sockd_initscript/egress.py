"""Whether a prefetched reply may be older than a write of the function.

The sandbox counts what its processes send from before the function's code runs (`zygote/handlers/egress.py`), and the process of
its handler asks it. Other processes cannot, nor hosts that do not count: there each reply may be older.
"""

from __future__ import annotations

import os
import sys
import time

OBSERVER = "sockd_zygote.handlers.egress"

_is_recorded = False


def may_be_stale() -> bool:
    """Whether something left this sandbox that may have been a write, or a reply would be older than it may become."""
    observer = sys.modules.get(OBSERVER)
    if _is_recorded or observer is None or observer.may_have_written():
        return True
    max_age_s = os.environ.get("SOCKD_STORAGE_MAX_AGE_S")
    return max_age_s is not None and time.monotonic_ns() - observer.began_ns > float(max_age_s) * 1e9


def note() -> None:
    """Something is about to leave this sandbox over a socket that it has not made."""
    global _is_recorded
    _is_recorded = True
