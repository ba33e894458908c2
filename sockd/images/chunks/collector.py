"""The garbage collector of a chunk store: carries out what `collection` decides, one bounded step at a time.

Any worker may collect; a lease in the store lets one do so at a time. Safety does not depend on the lease nor on clocks: two
collectors copy the same bytes, and change the table by compare-and-set. A step may end anywhere, by a kill too; the next one
reads the store again. Each step that deletes reads the alarms first.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import msgspec

from sockd.base.errors import ChunkMissing, Tampered
from sockd.images.chunks.catalog import new_root_name
from sockd.images.chunks.collection import Action, Delete, Expire, Holdings, Migrate, Wait, next_action
from sockd.images.chunks.layout import (
    ALARMS,
    LEASE,
    MANIFESTS,
    PROFILES,
    REFERENCES,
    Image,
    Reference,
    check_part,
    manifest_key,
    profile_key,
)
from sockd.images.chunks.manifest import chunk_names
from sockd.images.chunks.root_table import BadTransition, RootEvent, RootState, RootTable, changed_table, ensured_table
from sockd.images.chunks.store import ChunkStore, StoredObject

GRACE_S = 24 * 3600.0
LEASE_S = 60.0
BATCH = 64

T = TypeVar("T")


class _Lease(msgspec.Struct, frozen=True):
    holder: str
    until_s: float


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did."""

    action: Action
    done: int = 0
    """Chunks and objects that were copied or deleted."""
    problem: str = ""
    """Why an image could not be copied; its root stays."""


class Collector:
    """One worker's collector. For one thread at a time. Each call may raise StoreUnavailable, StoreFull and Tampered."""

    def __init__(
        self,
        store: ChunkStore,
        *,
        worker: str,
        grace_s: float = GRACE_S,
        batch: int = BATCH,
        threads: int = 4,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Args:
        worker: its name among those that share the store.
        grace_s: from the expiry of a root until its deletion begins; at least twice `RootWatch.max_age_s`.
        batch: copies or deletions of one step."""
        self._store = store
        self._holder = f"{check_part(worker, 'a worker')}.{secrets.token_hex(8)}"
        self._grace_s = grace_s
        self._batch = batch
        self._threads = threads
        self._clock = clock
        self._copying: tuple[Migrate, list[bytes]] | None = None
        """The migration under way, and the chunks that it has not copied."""
        self._failed: set[Image] = set()

    def rotate(self) -> str:
        """Retire the active root; the new one. What no reference names stays behind, and is deleted with the old root."""
        new = new_root_name()
        ensured_table(self._store, new_root_name, self._clock())
        changed_table(self._store, lambda table: table.rotated(new, self._clock()))
        self._failed.clear()
        return new

    def step(self) -> Step:
        """Do one thing, bounded by `batch`."""
        if not self._hold_lease():
            return Step(Wait(("another worker collects",)))
        held = self.holdings()
        action = next_action(held, now_s=self._clock(), grace_s=self._grace_s, failed=frozenset(self._failed))
        match action:
            case Migrate():
                return self._migrate(action)
            case Expire(root):
                self._expire(held.table, root)
            case Delete(root):
                return Step(action, self._delete(held.table, root))
        return Step(action)

    def run(self, *, max_steps: int | None = None) -> Iterator[Step]:
        """Steps until there is nothing to do now; the last one is the one that waits."""
        for step in islice(iter(self.step, None), max_steps):
            yield step
            if isinstance(step.action, Wait):
                return

    def clear_alarms(self, *, restore: bool) -> list[str]:
        """For the operator, when the cause is removed: the roots that had alarms.

        Args: restore: make them retired again, so that images that are referenced now are copied; otherwise `grace_s` begins
            anew, and a worker that still reads raises the alarm again before anything is deleted."""
        alarms = list(self._store.list_objects(ALARMS))
        roots = sorted({key.split("/")[1] for key in alarms})
        event = RootEvent.RESTORE if restore else RootEvent.RENEW

        def cleared(table: RootTable) -> RootTable:
            for root in roots:
                if table.state(root) is RootState.EXPIRED:
                    table = table.after(root, event, self._clock())
            return table

        changed_table(self._store, cleared)
        for key in alarms:
            self._store.delete_object(key)
        return roots

    def forget_worker(self, worker: str) -> int:
        """Drop the references of a worker that is gone for ever: how many."""
        keys = list(self._store.list_objects(f"{REFERENCES}{check_part(worker, 'a worker')}/"))
        for key in keys:
            self._store.delete_object(key)
        return len(keys)

    def holdings(self) -> Holdings:
        """What the store holds. The table is read before the references: see `Catalog`."""
        table = ensured_table(self._store, new_root_name, self._clock())
        references = frozenset(Reference.parse(key) for key in self._store.list_objects(REFERENCES))
        manifests: dict[str, set[Image]] = {}
        for key in self._store.list_objects(MANIFESTS):
            _, root, tenant, name = key.split("/")
            manifests.setdefault(root, set()).add(Image(tenant, name))
        alarms: dict[str, set[str]] = {}
        for key in self._store.list_objects(ALARMS):
            _, root, worker = key.split("/")
            alarms.setdefault(root, set()).add(worker)
        leftovers = {root for root in table.in_state(RootState.DELETED) if any(True for _ in self._store.names(root))}
        if unknown := manifests.keys() - table.roots.keys():
            # Another collector has made this root since the table was read, or it was deleted long ago: a root is in the table
            # before anything is in the root.
            later = ensured_table(self._store, new_root_name, self._clock())
            leftovers |= unknown - later.roots.keys()
        return Holdings(
            table,
            references,
            {root: frozenset(images) for root, images in manifests.items()},
            {root: frozenset(workers) for root, workers in alarms.items()},
            frozenset(leftovers | (manifests.keys() & table.in_state(RootState.DELETED))),
        )

    def has_stray_chunks(self, root: str, images: Iterable[Image]) -> bool:
        """Whether a root has chunks that none of these images names."""
        named: set[bytes] = set()
        for image in images:
            if (sealed := self._store.get_object(manifest_key(root, image))) is not None:
                named |= chunk_names(sealed.data)
        return any(name not in named for name in self._store.names(root))

    # ---- steps ----

    def _migrate(self, action: Migrate) -> Step:
        sealed = self._store.get_object(manifest_key(action.source, action.image))
        if sealed is None:
            return Step(action)  # deleted since it was listed; the next step lists again
        try:
            if self._copying is None or self._copying[0] != action:
                self._copying = (action, sorted(chunk_names(sealed.data)))
            left = self._copying[1]
            part, self._copying = left[: self._batch], (action, left[self._batch :])
            self._each(lambda name: self._store.copy(action.source, action.target, name), part)
        except (ChunkMissing, Tampered) as error:
            self._copying = None
            self._failed.add(action.image)
            return Step(action, problem=error.message)
        except BaseException:
            self._copying = None
            raise
        if not self._copying[1]:
            self._copying = None
            self._publish(action, sealed)
        return Step(action, len(part))

    def _publish(self, action: Migrate, sealed: StoredObject) -> None:
        profile = self._store.get_object(profile_key(action.source, action.image))
        if profile is not None:
            self._store.create_object(profile_key(action.target, action.image), profile.data)
        self._store.create_object(manifest_key(action.target, action.image), sealed.data)

    def _expire(self, seen: RootTable, root: str) -> None:
        """Only if the table is still what it was before the references were listed."""

        def expired(table: RootTable) -> RootTable:
            if table != seen:
                raise BadTransition(root)
            return table.after(root, RootEvent.EXPIRE, self._clock())

        self._change(expired)

    def _delete(self, seen: RootTable, root: str) -> int:
        objects = [
            *islice(self._store.list_objects(f"{MANIFESTS}{root}/"), self._batch),
            *islice(self._store.list_objects(f"{PROFILES}{root}/"), self._batch),
        ][: self._batch]
        if objects:
            self._each(self._store.delete_object, objects)
            return len(objects)
        names = list(islice(self._store.names(root), self._batch))
        if names:
            self._each(lambda name: self._store.delete(root, name), names)
            return len(names)
        if seen.state(root) is RootState.EXPIRED:
            self._change(lambda table: table.after(root, RootEvent.DELETE, self._clock()))
        return 0

    def _change(self, change: Callable[[RootTable], RootTable]) -> None:
        """A change that another worker made first is no error: the next step sees it."""
        try:
            changed_table(self._store, change)
        except BadTransition:
            return

    def _each(self, do: Callable[[T], object], items: Iterable[T]) -> None:
        if self._threads == 1:
            for item in items:
                do(item)
            return
        with ThreadPoolExecutor(self._threads, thread_name_prefix="collector") as pool:
            for _ in pool.map(do, items):
                pass

    def _hold_lease(self) -> bool:
        """Whether this collector has the lease, for a part of it at least."""
        now_s = self._clock()
        found = self._store.get_object(LEASE)
        mine = msgspec.json.encode(_Lease(self._holder, now_s + LEASE_S))
        if found is None:
            return self._store.create_object(LEASE, mine)
        lease = _parsed_lease(found.data)
        if lease is not None and lease.holder == self._holder and lease.until_s - now_s > LEASE_S / 2:
            return True
        if lease is not None and lease.holder != self._holder and lease.until_s > now_s:
            return False
        return self._store.swap_object(LEASE, mine, found.version)


def _parsed_lease(data: bytes) -> _Lease | None:
    try:
        return msgspec.json.decode(data, type=_Lease)
    except msgspec.MsgspecError:
        return None
