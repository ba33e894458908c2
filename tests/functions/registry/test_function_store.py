"""What every store of functions does, and what registries do that share one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sockd.base.errors import StorageFull
from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.aliases import Alias
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.function_store import Conflict, FunctionStore
from sockd.functions.registry.registry import Registry
from sockd.functions.registry.secrets import Vault
from sockd.functions.registry.sqlite_store import SqliteStore
from tests.support.memory_store import MemoryStore

RECORD = FunctionRecord("f", 1, "d1", 10, "f:f", '{"env":{"A":"b"},"sealed":null}', "[]", "", 5.0, 5.0)
ALIAS = Alias("f", "prod", "$LATEST")


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FunctionStore]:
    store: FunctionStore = MemoryStore()
    if request.param == "sqlite":
        store = SqliteStore.open(tmp_path / "registry.sqlite", Vault.at(tmp_path / "secret.key"))
    yield store
    store.close()


def deployed() -> FunctionAggregate:
    return FunctionAggregate("f").with_deploy(RECORD, keep=5)


def put(registry: Registry, digest: str) -> FunctionRecord:
    return registry.put("f", digest=digest, code_bytes=1, handler="f:f", config="{}", closure="[]")


def test_what_is_stored_is_read_with_its_revision(store: FunctionStore) -> None:
    stored = store.put(deployed(), expected=store.get("f"))
    assert stored.revision > 0 and replace(stored, revision=0) == deployed()
    assert store.get("f") == stored and list(store) == [stored]
    assert store.get("other") == FunctionAggregate("other")


def test_each_change_has_another_revision_also_after_a_removal(store: FunctionStore) -> None:
    first = store.put(deployed(), expected=store.get("f"))
    second = store.put(first.with_alias(ALIAS), expected=first)
    store.remove(second)
    assert list(store) == [] and store.get("f").revision == 0
    third = store.put(deployed(), expected=store.get("f"))
    assert len({first.revision, second.revision, third.revision}) == 3


def test_a_change_of_what_is_not_stored_any_more_changes_nothing(store: FunctionStore) -> None:
    first = store.put(deployed(), expected=store.get("f"))
    second = store.put(first.with_alias(ALIAS), expected=first)
    with pytest.raises(Conflict, match="function 'f' was changed by someone else"):
        store.put(first.without_alias("prod"), expected=first)
    with pytest.raises(Conflict):
        store.remove(first)
    with pytest.raises(Conflict):
        store.put(deployed(), expected=FunctionAggregate("f"))
    assert store.get("f") == second


def test_deploys_that_are_forgotten_are_not_stored_any_more(store: FunctionStore) -> None:
    function = store.put(deployed(), expected=store.get("f"))
    for digest in ("d2", "d3"):
        function = store.put(function.with_deploy(replace(RECORD, digest=digest), keep=2), expected=function)
    assert [record.digest for record in store.get("f").deploys] == ["d2", "d3"]


def test_two_registries_do_not_overwrite_each_other(store: FunctionStore) -> None:
    one = Registry(store)
    put(one, "d1")
    other = Registry(store)
    put(one, "d2")
    with pytest.raises(Conflict):
        other.change("f", lambda function: function.with_alias(ALIAS))
    assert other.get("f").digest == "d2" and not other.of("f").aliases  # it has read what the other one has stored
    other.change("f", lambda function: function.with_alias(ALIAS))
    assert [record.digest for record in other.of("f").deploys] == ["d1", "d2"]


def test_nothing_has_changed_where_nothing_could_be_stored(tmp_path: Path) -> None:
    registry = Registry.open(tmp_path / "registry.sqlite")
    put(registry, "d1")
    before = registry.of("f")
    database = sqlite3.connect(tmp_path / "registry.sqlite", isolation_level=None)
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.close()
    registry._store._run(f"PRAGMA max_page_count = {pages}")  # type: ignore[attr-defined]
    with pytest.raises(StorageFull):
        registry.put("f", digest="d" * 100_000, code_bytes=1, handler="f:f", config="{}", closure="[]")
    assert registry.of("f") == before
    registry.close()
    registry = Registry.open(tmp_path / "registry.sqlite")
    assert registry.of("f") == before
    registry.close()
