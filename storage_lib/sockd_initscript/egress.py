"""What the sandbox observed of this process's egress: whether a prefetched reply may be older than a write of the function.

The sandbox observes its handler's process from before the function's code runs (`zygote/handlers/egress.py`). Every other process
is not observed, and there each reply may be stale.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from contextlib import AbstractContextManager

OBSERVER = "sockd_zygote.handlers.egress"


def may_be_stale() -> bool:
    """Whether something left this process that may have been a write, or a reply would be older than it may become."""
    observer = sys.modules.get(OBSERVER)
    if observer is None or observer.reason():
        return True
    max_age_s = os.environ.get("SOCKD_STORAGE_MAX_AGE_S")
    return max_age_s is not None and time.monotonic_ns() - observer.began_ns > float(max_age_s) * 1e9


def reading() -> AbstractContextManager[None]:
    """`with reading():` what this thread sends is a read, which changes nothing."""
    observer = sys.modules.get(OBSERVER)
    return observer.exempt() if observer is not None else Unobserved()


def note(what: str) -> None:
    """Something is about to leave this process that may be a write."""
    observer = sys.modules.get(OBSERVER)
    if observer is not None:
        observer.note(what)


class Unobserved:
    """Does nothing (contextlib is off the import diet)."""

    def __enter__(self) -> None:
        return

    def __exit__(self, *error: object) -> None:
        return
