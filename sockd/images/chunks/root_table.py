"""The roots of a chunk store: a table with exactly one active root, and its transitions.

    ACTIVE ──retire──> RETIRED ──expire──> EXPIRED ──delete──> DELETED
                          └────────restore─────┘

    ACTIVE     uploads go here
    RETIRED    no new uploads; images that are still referenced are copied to the active root
    EXPIRED    no reference names it; no worker should read it, so a read is an alarm; at first still complete, later deleted
    DELETED    nothing is left of it

A new root keeps the origin of its predecessors. The origin is in the salt of chunks, therefore an image that is uploaded again
after a rotation has the same chunks as its copy. Pure values; the table is one object of the store, changed by compare-and-set.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

from sockd.base.errors import StoreUnavailable, Tampered
from sockd.images.chunks.store import ChunkStore, check_root

KEY = "roots"
KEPT_DELETED = 5
_ATTEMPTS = 20


class RootState(enum.StrEnum):
    ACTIVE = "active"
    RETIRED = "retired"
    EXPIRED = "expired"
    DELETED = "deleted"


class RootEvent(enum.StrEnum):
    RETIRE = "retire"
    EXPIRE = "expire"
    RESTORE = "restore"
    RENEW = "renew"
    """The time that an expired root is kept begins anew."""
    DELETE = "delete"


TRANSITIONS = {
    RootState.ACTIVE: {RootEvent.RETIRE: RootState.RETIRED},
    RootState.RETIRED: {RootEvent.EXPIRE: RootState.EXPIRED},
    RootState.EXPIRED: {
        RootEvent.RESTORE: RootState.RETIRED,
        RootEvent.RENEW: RootState.EXPIRED,
        RootEvent.DELETE: RootState.DELETED,
    },
    RootState.DELETED: {},
}


class BadTransition(Exception):
    """The root is not in a state that has this transition."""


class Root(msgspec.Struct, frozen=True):
    """One root."""

    state: RootState
    since_s: float
    """When it came into this state, by the clock of the worker that changed it."""


class RootTable(msgspec.Struct, frozen=True):
    """All roots, the oldest first. Of deleted ones the last KEPT_DELETED."""

    origin: str
    """The first root."""
    roots: dict[str, Root]
    key: str = ""
    """What all workers that store images here derive from their key; empty: none has yet."""

    @classmethod
    def first(cls, root: str, now_s: float) -> RootTable:
        return cls(check_root(root), {root: Root(RootState.ACTIVE, now_s)})

    @property
    def active(self) -> str:
        (active,) = self.in_state(RootState.ACTIVE)
        return active

    def in_state(self, state: RootState) -> list[str]:
        return [name for name, root in self.roots.items() if root.state is state]

    def state(self, root: str) -> RootState:
        """DELETED also for one that the table does not have."""
        found = self.roots.get(root)
        return found.state if found else RootState.DELETED

    def rotated(self, new: str, now_s: float) -> RootTable:
        """The active root is retired, and a new one is active. Raises: BadTransition: the name was used before."""
        if new in self.roots:
            raise BadTransition(f"the root {new} exists")
        retired = self.after(self.active, RootEvent.RETIRE, now_s)
        roots = {**retired.roots, check_root(new): Root(RootState.ACTIVE, now_s)}
        return msgspec.structs.replace(retired, roots=roots)

    def after(self, root: str, event: RootEvent, now_s: float) -> RootTable:
        """The table after an event of one root. Raises: BadTransition."""
        state = self.state(root)
        try:
            following = TRANSITIONS[state][event]
        except KeyError:
            raise BadTransition(f"{event} while {state}: {root}") from None
        roots = {**self.roots, root: Root(following, now_s)}
        deleted = [name for name, each in roots.items() if each.state is RootState.DELETED]
        for name in deleted[:-KEPT_DELETED]:
            del roots[name]
        return msgspec.structs.replace(self, roots=roots)


class StoredTable(msgspec.Struct, frozen=True):
    """A table as it was read."""

    table: RootTable
    version: str


def read_table(store: ChunkStore) -> StoredTable | None:
    """None: the store is new. Raises: StoreUnavailable; Tampered."""
    found = store.get_object(KEY)
    if found is None:
        return None
    try:
        table = msgspec.json.decode(found.data, type=RootTable)
        for name in table.roots:
            check_root(name)
        _ = table.active
    except (msgspec.MsgspecError, ValueError):
        raise Tampered(f"the chunk store {store.name} has something else where its table of roots should be") from None
    return StoredTable(table, found.version)


def ensured_table(store: ChunkStore, new_root: Callable[[], str], now_s: float) -> RootTable:
    """The table, which is made when the store is new."""
    for _ in range(_ATTEMPTS):
        if (found := read_table(store)) is not None:
            return found.table
        table = RootTable.first(new_root(), now_s)
        if store.create_object(KEY, msgspec.json.encode(table)):
            return table
    raise StoreUnavailable(store.name, "its table of roots appears and disappears")


def changed_table(store: ChunkStore, change: Callable[[RootTable], RootTable]) -> RootTable:
    """The table after `change`, by compare-and-set; `change` is called again when another worker was faster.

    Raises: what `change` raises; StoreUnavailable; StoreFull."""
    for _ in range(_ATTEMPTS):
        found = read_table(store)
        if found is None:
            raise StoreUnavailable(store.name, "it has no table of roots")
        table = change(found.table)
        if store.swap_object(KEY, msgspec.json.encode(table), found.version):
            return table
    raise StoreUnavailable(store.name, "its table of roots changes all the time")
