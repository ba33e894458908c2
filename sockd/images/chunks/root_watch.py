"""Which state the roots of a store are in, as a worker knows it; and the alarm when it has an image of an expired one open.

Before a root expires, each worker has dropped its references to it, so that no worker should open its images. One that does is a
bug, lost its references, or shares the store and is not configured to. The manifest is served, since the data is there; the alarm
stops all deletions of the garbage collector, until an operator has cleared it. The worker looks when it opens an image, and every
minute at the roots of those that are open; reads of chunks raise no alarm (record 57).

A reader knows the table of roots at most `refresh_s` late. Deletion begins `grace_s` after expiry, which is longer; a reader that
could not refresh the table for half of that time opens nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from sockd.base.errors import ChunkStoreFailed, StoreUnavailable
from sockd.images.chunks.layout import alarm_key, check_part
from sockd.images.chunks.root_table import RootState, RootTable, read_table
from sockd.images.chunks.store import ChunkStore

REFRESH_S = 30.0
MAX_AGE_S = 600.0


class RootWatch:
    """The states of one store's roots, for one worker. Any thread may call."""

    def __init__(
        self,
        store: ChunkStore,
        worker: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        refresh_s: float = REFRESH_S,
        max_age_s: float = MAX_AGE_S,
    ) -> None:
        """Args:
        worker: its name in alarms.
        max_age_s: the oldest table with which images are opened; at most half of the collector's `grace_s`."""
        self._store = store
        self._worker = check_part(worker, "a worker's name")
        self._clock = clock
        self._refresh_s = refresh_s
        self._max_age_s = max_age_s
        self._table: RootTable | None = None
        self._read_s = 0.0
        self._alarmed: set[str] = set()
        """Since the table was read last."""
        self._lock = threading.Lock()

    def reading(self, root: str) -> None:
        """Raise the alarm if a root, of which an image is open, is expired. Raises: StoreUnavailable."""
        with self._lock:
            table = self._current()
            if table.state(root) in (RootState.EXPIRED, RootState.DELETED) and root not in self._alarmed:
                self._alarm(root)

    def _current(self) -> RootTable:
        age_s = self._clock() - self._read_s
        if self._table is not None and age_s < self._refresh_s:
            return self._table
        try:
            found = read_table(self._store)
        except ChunkStoreFailed:
            if self._table is None or age_s > self._max_age_s:
                raise
            return self._table
        if found is None:
            raise StoreUnavailable(self._store.name, "it has no table of roots")
        self._table, self._read_s = found.table, self._clock()
        self._alarmed.clear()
        return found.table

    def _alarm(self, root: str) -> None:
        # An alarm that cannot be written is tried again at the next read.
        try:
            self._store.create_object(alarm_key(root, self._worker), msgspec.json.encode({"at_s": time.time()}))
        except ChunkStoreFailed:
            return
        self._alarmed.add(root)
