"""Tries of one call: another one after a connection that was lost, or an answer that says that nothing ran. Owns nothing.

All tries have one Idempotency-Key, so a worker that lives on runs the function once. A worker that was killed has forgotten its
keys: the function may run again, as its first run may have ended.
"""

from __future__ import annotations

import random
import select
from collections.abc import Callable
from typing import TypeVar

from sockd.client.python.errors import NoWorker, RemoteError

T = TypeVar("T")

PAUSE_S = (0.25, 8.0)
"""Before the second try, and at most; each pause is twice the one before."""


def persisted(attempt: Callable[[], T], retries: int) -> T:
    """What the first attempt returns that gets an answer. Args: retries: how many follow the first. Raises: the last error."""
    pause_s, longest_s = PAUSE_S
    while True:
        try:
            return attempt()
        except (NoWorker, RemoteError) as error:
            wanted_s = error.retry_after_s
            if retries <= 0 or wanted_s is None:
                raise
        retries -= 1
        # Nothing tells that a worker answers again. Many callers lose the same worker: their pauses differ.
        select.poll().poll(max(wanted_s, pause_s * random.uniform(0.5, 1.0)) * 1000)
        pause_s = min(2 * pause_s, longest_s)


def check(retries: int) -> int:
    """Raises: ValueError."""
    if retries < 0:
        raise ValueError("retries must be at least 0")
    return retries
