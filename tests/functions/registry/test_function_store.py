"""What every store of functions does, and what registries do that share one."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sockd.base.config import PostgresConfig
from sockd.base.errors import NoSuchFunction, StorageFull
from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.aliases import Alias
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.function_store import Conflict, FunctionStore
from sockd.functions.registry.postgres_store import PostgresStore
from sockd.functions.registry.registry import Registry
from sockd.functions.registry.secrets import Vault
from sockd.functions.registry.sqlite_store import SqliteStore
from tests.support.memory_store import MemoryStore

pytestmark = pytest.mark.anyio
RECORD = FunctionRecord("f", 1, "d1", 10, "f:f", '{"env":{"A":"b"},"sealed":null}', "[]", "", 5.0, 5.0)
ALIAS = Alias("f", "prod", "$LATEST")


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FunctionStore]:
    store: FunctionStore = MemoryStore()
    vault = Vault.at(tmp_path / "secret.key")
    if request.param == "sqlite":
        store = SqliteStore.open(tmp_path / "registry.sqlite", vault)
    elif request.param == "postgres":
        postgres = PostgresConfig(dsn=request.getfixturevalue("postgres_dsn"), timeout_s=60.0)
        store = await PostgresStore.open(postgres, vault)
    yield store
    await store.aclose()


def deployed() -> FunctionAggregate:
    return FunctionAggregate("f").with_deploy(RECORD, keep=5)


async def put(registry: Registry, digest: str) -> FunctionRecord:
    return await registry.put("f", digest=digest, code_bytes=1, handler="f:f", config="{}", closure="[]")


async def test_what_is_stored_is_read_with_its_revision(store: FunctionStore) -> None:
    stored = await store.put(deployed(), expected=await store.get("f"))
    assert stored.revision > 0 and replace(stored, revision=0) == deployed()
    assert await store.get("f") == stored and await store.read() == [stored]
    assert await store.get("other") == FunctionAggregate("other")


async def test_each_change_has_another_revision_also_after_a_removal(store: FunctionStore) -> None:
    first = await store.put(deployed(), expected=await store.get("f"))
    second = await store.put(first.with_alias(ALIAS), expected=first)
    await store.remove(second)
    assert await store.read() == [] and (await store.get("f")).revision == 0
    third = await store.put(deployed(), expected=await store.get("f"))
    assert len({first.revision, second.revision, third.revision}) == 3


async def test_a_change_of_what_is_not_stored_any_more_changes_nothing(store: FunctionStore) -> None:
    first = await store.put(deployed(), expected=await store.get("f"))
    second = await store.put(first.with_alias(ALIAS), expected=first)
    with pytest.raises(Conflict, match="function 'f' was changed by someone else"):
        await store.put(first.without_alias("prod"), expected=first)
    with pytest.raises(Conflict):
        await store.remove(first)
    with pytest.raises(Conflict):
        await store.put(deployed(), expected=FunctionAggregate("f"))
    assert await store.get("f") == second


async def test_deploys_that_are_forgotten_are_not_stored_any_more(store: FunctionStore) -> None:
    function = await store.put(deployed(), expected=await store.get("f"))
    for digest in ("d2", "d3"):
        function = await store.put(function.with_deploy(replace(RECORD, digest=digest), keep=2), expected=function)
    assert [record.digest for record in (await store.get("f")).deploys] == ["d2", "d3"]


async def test_two_registries_do_not_overwrite_each_other(store: FunctionStore) -> None:
    one = await Registry.load(store)
    await put(one, "d1")
    other = await Registry.load(store)
    await put(one, "d2")
    with pytest.raises(Conflict):
        await other.change("f", lambda function: function.with_alias(ALIAS))
    assert other.get("f").digest == "d2" and not other.of("f").aliases  # it has read what the other one has stored
    await other.change("f", lambda function: function.with_alias(ALIAS))
    assert [record.digest for record in other.of("f").deploys] == ["d1", "d2"]


class SlowStore(MemoryStore):
    """A store whose answers come later."""

    async def put(self, new: FunctionAggregate, *, expected: FunctionAggregate) -> FunctionAggregate:
        await asyncio.sleep(0)
        return await super().put(new, expected=expected)


async def test_changes_of_a_function_at_the_same_time_follow_each_other() -> None:
    registry = Registry(SlowStore())
    await put(registry, "d1")
    published = [registry.publish("f", 1, str(number)) for number in range(5)]
    assert sorted(each.number for each in await asyncio.gather(*published)) == [1, 2, 3, 4, 5]
    removed, failed = await asyncio.gather(registry.delete("f"), registry.publish("f", 1, ""), return_exceptions=True)
    assert removed is None and isinstance(failed, NoSuchFunction)


async def test_nothing_has_changed_where_nothing_could_be_stored(tmp_path: Path) -> None:
    registry = await Registry.open(tmp_path / "registry.sqlite")
    await put(registry, "d1")
    before = registry.of("f")
    database = sqlite3.connect(tmp_path / "registry.sqlite", isolation_level=None)
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.close()
    registry._store._run(f"PRAGMA max_page_count = {pages}")  # type: ignore[attr-defined]
    with pytest.raises(StorageFull):
        await registry.put("f", digest="d" * 100_000, code_bytes=1, handler="f:f", config="{}", closure="[]")
    assert registry.of("f") == before
    await registry.aclose()
    registry = await Registry.open(tmp_path / "registry.sqlite")
    assert registry.of("f") == before
    await registry.aclose()
