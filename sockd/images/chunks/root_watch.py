"""Which state the roots of a store are in, as a reader knows it; and the alarm when it reads an expired one.

Before a root expires, each worker has dropped its references to it, so that nobody should read it. A read is a bug, a worker that
lost its references, or one that shares the store and is not configured to. The read is served, since the data is there; the alarm
stops all deletions of the garbage collector, until an operator has cleared it.

A reader knows the table of roots at most `refresh_s` late. Deletion begins `grace_s` after expiry, which is longer; a reader that
could not refresh the table for half of that time does not read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import msgspec

from sockd.base.errors import ChunkStoreFailed, StoreUnavailable
from sockd.images.chunks.layout import alarm_key, check_part
from sockd.images.chunks.root_table import RootState, RootTable, read_table
from sockd.images.chunks.store import ChunkStore, StoredObject

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
        max_age_s: the oldest table that permits reads; at most half of the collector's `grace_s`."""
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
        """To be called before a read: raises the alarm if the root is expired. Raises: StoreUnavailable."""
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


class WatchedStore:
    """A store whose reads of chunks raise the alarm for expired roots; everything else is the store's own."""

    def __init__(self, store: ChunkStore, watch: RootWatch) -> None:
        self.name = store.name
        self.keeps_bytes = store.keeps_bytes
        self._store = store
        self._watch = watch

    @property
    def heard_s(self) -> float:
        return self._store.heard_s

    def get(self, root: str, name: bytes) -> bytes:
        self._watch.reading(root)
        return self._store.get(root, name)

    def put(self, root: str, name: bytes, data: bytes, *, replace: bool = False) -> bool:
        return self._store.put(root, name, data, replace=replace)

    def has(self, root: str, name: bytes) -> bool:
        return self._store.has(root, name)

    def names(self, root: str) -> Iterator[bytes]:
        return self._store.names(root)

    def delete(self, root: str, name: bytes) -> None:
        self._store.delete(root, name)

    def copy(self, source: str, target: str, name: bytes) -> bool:
        return self._store.copy(source, target, name)

    def get_object(self, key: str) -> StoredObject | None:
        return self._store.get_object(key)

    def put_object(self, key: str, data: bytes) -> None:
        self._store.put_object(key, data)

    def create_object(self, key: str, data: bytes) -> bool:
        return self._store.create_object(key, data)

    def swap_object(self, key: str, data: bytes, version: str) -> bool:
        return self._store.swap_object(key, data, version)

    def list_objects(self, prefix: str) -> Iterator[str]:
        return self._store.list_objects(prefix)

    def delete_object(self, key: str) -> None:
        self._store.delete_object(key)

    def close(self) -> None:
        self._store.close()
