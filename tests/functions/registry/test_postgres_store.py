"""Functions in PostgreSQL: writers at the same time, lost answers, newer workers, and what is sealed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sockd.base.config import PostgresConfig
from sockd.base.postgres.database import BadDatabase, Database
from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.aliases import Alias
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.function_store import Conflict
from sockd.functions.registry.postgres_store import PostgresStore, WrittenByNewer
from sockd.functions.registry.registry import Registry
from sockd.functions.registry.secrets import Vault
from tests.support.servers.postgres_server import PostgresServer

pytestmark = pytest.mark.anyio
CONFIG = '{"env":{"A":"hidden-4711"},"sealed":null}'
RECORD = FunctionRecord("f", 1, "d1", 10, "f:f", CONFIG, "[]", "", 5.0, 5.0)
DEPLOYED = FunctionAggregate("f").with_deploy(RECORD, keep=5)
EMPTY = FunctionAggregate("f")


async def opened(dsn: str, tmp_path: Path) -> PostgresStore:
    return await PostgresStore.open(PostgresConfig(dsn=dsn, timeout_s=60.0), Vault.at(tmp_path / "secret.key"))


@pytest.fixture
async def store(postgres_dsn: str, tmp_path: Path) -> AsyncIterator[PostgresStore]:
    store = await opened(postgres_dsn, tmp_path)
    yield store
    await store.aclose()


def lose_an_answer(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next transaction is committed, and its answer does not arrive."""
    once = database._once

    async def lost(work: Callable[[Any], Awaitable[object]], *, begin: bool) -> None:
        monkeypatch.undo()
        await once(work, begin=begin)
        raise ConnectionResetError

    monkeypatch.setattr(database, "_once", lost)


async def test_a_function_is_there_for_the_next_worker_and_its_environment_is_sealed(
    store: PostgresStore, postgres_dsn: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    stored = await store.put(DEPLOYED, expected=EMPTY)
    other = await opened(postgres_dsn, tmp_path)
    assert await other.read() == [stored]
    await other.aclose()
    schema = postgres_dsn.partition("search_path=")[2]
    assert '"sealed":"v1.' in postgres.run(f"SELECT config FROM {schema}.deploys")
    stranger = await opened(postgres_dsn, tmp_path / "elsewhere")
    (found,) = await stranger.read()
    assert found.current.readable.env == {} and not (tmp_path / "elsewhere").exists()
    await stranger.aclose()


async def test_of_writers_at_the_same_time_one_wins(store: PostgresStore) -> None:
    for expected in (EMPTY, None):
        expected = expected or await store.get("f")
        new = (expected.with_deploy(replace(RECORD, digest=f"d{number}"), keep=5) for number in range(8))
        puts = [store.put(each, expected=expected) for each in new]
        results = await asyncio.gather(*puts, return_exceptions=True)
        assert sum(isinstance(each, FunctionAggregate) for each in results) == 1
        assert sum(isinstance(each, Conflict) for each in results) == 7


async def test_two_workers_that_change_one_function_lose_no_change(store: PostgresStore) -> None:
    await store.put(DEPLOYED, expected=EMPTY)
    one, other = await Registry.load(store), await Registry.load(store)

    async def change(registry: Registry, name: str) -> None:
        for number in range(20):
            alias = Alias("f", f"{name}{number}", "$LATEST")
            while alias.alias not in registry.of("f").aliases:
                try:
                    await registry.change("f", lambda function, alias=alias: function.with_alias(alias))  # type: ignore[misc]
                except Conflict:
                    continue

    await asyncio.gather(change(one, "a"), change(other, "b"))
    assert len((await store.get("f")).aliases) == 40


async def test_a_change_whose_answer_is_lost_is_made_once(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_an_answer(store.database, monkeypatch)
    stored = await store.put(DEPLOYED, expected=EMPTY)
    assert await store.get("f") == stored
    lose_an_answer(store.database, monkeypatch)
    await store.remove(stored)
    assert await store.read() == []


async def test_what_a_newer_sockd_has_written_is_read_and_not_changed(
    store: PostgresStore, postgres_dsn: str, postgres: PostgresServer
) -> None:
    stored = await store.put(DEPLOYED, expected=EMPTY)
    schema = postgres_dsn.partition("search_path=")[2]
    postgres.run(f"UPDATE {schema}.functions SET schema = 99, value = '{{\"new\":1,' || substr(value, 2)")
    assert await store.get("f") == stored
    with pytest.raises(WrittenByNewer, match="function 'f' was changed by a newer sockd"):
        await store.put(stored.with_alias(Alias("f", "prod", "$LATEST")), expected=stored)
    with pytest.raises(WrittenByNewer):
        await store.remove(stored)
    assert await store.get("f") == stored


async def test_tables_of_a_newer_sockd_are_refused(store: PostgresStore, postgres_dsn: str, tmp_path: Path) -> None:
    await store.database.value("UPDATE sockd_schemas SET number = 99 WHERE part = 'functions'")
    with pytest.raises(BadDatabase, match=r"the functions in PostgreSQL .*schema 99, this one knows 3"):
        await opened(postgres_dsn, tmp_path)
