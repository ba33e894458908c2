"""When the garbage collector looks for cycles: while few requests run, and not in the middle of a crowd.

A thousand requests that wait are 20 000 objects, all in use. To look through them took 4 to 5 ms of the loop, again with
each crowd, and found nothing: an invocation makes no cycles. So Python's own rule, which counts objects that stay, is a
backstop for a crowd that never ends, and the usual time to look is a quiet moment. It looks every 2 s whether there is one.

Owns the collector's thresholds and a timer. Knows nothing of requests but how many run.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

LOOK_S = 2.0
FEW = 8
"""Requests that may run while it collects: streams may run for as long as somebody looks."""
WORTHWHILE = 2_000
"""Objects that have come to stay: half a millisecond."""
BACKSTOP = 200_000
"""As many stay when all of `http.max_connections` ask at once."""
SURVIVALS = 20
"""Collections of one generation until the next one is due."""


class Collector:
    """Python's collector, as the daemon uses it. `start` when what is there is there for good; `close`."""

    def __init__(self, running: Callable[[], int]) -> None:
        """Args: running: how many requests run now."""
        self._running = running
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Leave what is there out of all collections, and look at the rest now and then."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(BACKSTOP, SURVIVALS, SURVIVALS)
        self.look()

    def close(self) -> None:
        """Look no more; the backstop stays."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Collect if that is due, and look again later."""
        self.close()
        generation = due(gc.get_count(), self._running())
        if generation is not None:
            gc.collect(generation)
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self.look)


def due(counts: tuple[int, int, int], running: int) -> int | None:
    """POLICY: which generation to collect now, if any.

    Args: counts: as `gc.get_count`: objects that stayed since the last collection, and how often those of the youngest and
        the middle generation were collected since the next older one was; running: requests under way."""
    young, middle, old = counts
    if young < WORTHWHILE or running > FEW:
        return None
    if middle < SURVIVALS:
        return 0
    return 1 if old < SURVIVALS else 2
