"""Breaks of what a worker's directory and its resources need to outlive failures."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from sockd.functions.registry import sqlite_store
from sockd.isolation.sandbox import process
from sockd.linux.cgroups import tree
from tests.support.breaks.breaking import breaks


@breaks("no-lock")
def no_lock() -> None:
    """A daemon does not lock its state directory."""
    fcntl.flock = lambda fd, operation: None


@breaks("no-sweep")
def no_sweep() -> None:
    """A start leaves the cgroups of a dead daemon where they are; a stop removes its own as ever."""
    destroy_all = tree.CgroupTree.destroy_all

    def first(self: tree.CgroupTree, deadline_s: float) -> None:
        tree.CgroupTree.destroy_all = destroy_all  # type: ignore[method-assign]

    tree.CgroupTree.destroy_all = first  # type: ignore[method-assign]


@breaks("late-commit")
def late_commit() -> None:
    """A deploy is answered while the registry's transaction is open: only a stop writes it."""

    @contextmanager
    def transaction(self: sqlite_store.SqliteStore) -> Iterator[None]:
        if not self._database.in_transaction:
            self._database.execute("BEGIN IMMEDIATE")
        yield

    async def aclose(self: sqlite_store.SqliteStore) -> None:
        if self._database.in_transaction:
            self._database.execute("COMMIT")
        self._database.close()

    sqlite_store.SqliteStore._transaction = transaction  # type: ignore[method-assign]
    sqlite_store.SqliteStore.aclose = aclose  # type: ignore[method-assign]


@breaks("nothing-undone")
def nothing_undone() -> None:
    """What the first steps of making a sandbox have taken is not given back when a later one fails."""

    class NothingUndone(ExitStack):
        def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
            if kind is not None:
                self.pop_all()
            return super().__exit__(kind, error, trace)

    process.ExitStack = NothingUndone  # type: ignore[assignment, attr-defined]
