"""Keys of a group: what is made, revoked or brought along on one worker holds on the others."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from sockd.base.config import PostgresConfig
from sockd.base.errors import BadRequest, DatabaseUnavailable, KeyNeeded
from sockd.functions.registry.following import Following
from sockd.functions.registry.postgres_store import PostgresStore
from sockd.functions.registry.registry import Registry
from sockd.functions.registry.secrets import Vault
from sockd.http.access.keys import Keys
from sockd.http.access.postgres_keys import JOINED, open_keys
from sockd.http.postgres_schema import MIGRATIONS, PART
from tests.support.fake_clock import until

pytestmark = pytest.mark.anyio
Start = Callable[[str], Awaitable[Keys]]


async def nothing() -> None:
    """Collect nothing."""


@pytest.fixture
async def start(postgres_dsn: str, tmp_path: Path) -> AsyncIterator[Start]:
    """Open the keys of a worker, which follow those of the others."""
    (tmp_path / "secret.key").touch(mode=0o600)
    (tmp_path / "secret.key").write_bytes(os.urandom(32))
    async with AsyncExitStack() as stack:

        async def start(name: str) -> Keys:
            config = PostgresConfig(dsn=postgres_dsn, worker=name)
            store = await PostgresStore.open(config, Vault.at(tmp_path / "secret.key"))
            await store.database.migrate(PART, MIGRATIONS)
            registry = Registry(store, await store.read())
            stack.push_async_callback(registry.aclose)
            following = Following(registry, config, 0)
            stack.push_async_callback(following.aclose)
            (tmp_path / name).mkdir(exist_ok=True)
            keys = await open_keys(store.database, following, tmp_path / name / "keys.json")
            following.start(nothing)
            return keys

        yield start


def names(keys: Keys) -> list[str]:
    return [key.name for key in keys.list()]


async def test_a_key_made_on_one_worker_is_known_and_revoked_on_another(start: Start) -> None:
    one, other = await start("w1"), await start("w2")
    text = await one.add("ci", ["read"], ["shop"])
    await until(lambda: names(other) == ["ci"])
    assert other.bearer(f"Bearer {text}".encode()) == one.list()[0]
    await other.remove("ci")
    await until(lambda: names(one) == [])
    with pytest.raises(KeyNeeded):
        one.bearer(f"Bearer {text}".encode())
    assert names(await start("w3")) == []


async def test_two_workers_make_no_two_keys_of_one_name(start: Start) -> None:
    one, other = await start("w1"), await start("w2")
    made = await asyncio.gather(one.add("ci", ["read"]), other.add("ci", ["read"]), return_exceptions=True)
    assert [type(each) for each in made if not isinstance(each, str)] == [BadRequest]
    await until(lambda: names(one) == names(other) == ["ci"])
    assert one.list() == other.list()


async def test_a_worker_that_joins_brings_its_keys_along_but_those_whose_names_are_taken(
    start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "w2" / "keys.json"
    path.parent.mkdir()
    alone = Keys.open(path)
    texts = [await alone.add(name, ["invoke"]) for name in ("ci", "web")]
    one = await start("w1")
    taken = await one.add("ci", ["read"])
    other = await start("w2")
    await until(lambda: names(one) == names(other) == ["ci", "web"])
    assert [one.find(text.encode()) is not None for text in (taken, *texts)] == [True, False, True]
    assert sorted(each.name for each in path.parent.iterdir()) == [JOINED]


async def test_a_key_that_only_a_newer_sockd_understands_is_refused_and_the_others_work(
    start: Start, postgres_dsn: str, tmp_path: Path
) -> None:
    one = await start("w1")
    await one.add("ci", ["read"])
    store = await PostgresStore.open(PostgresConfig(dsn=postgres_dsn), Vault.at(tmp_path / "secret.key"))
    try:
        await store.database.value("INSERT INTO client_keys VALUES ('0', 'new', '{\"id\": \"0\", \"may\": []}')")
    finally:
        await store.aclose()
    assert names(await start("w2")) == ["ci"]


async def test_a_key_that_the_database_does_not_take_is_none(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = await start("w1")

    async def away(*what: object, **how: object) -> None:
        raise DatabaseUnavailable("away")

    monkeypatch.setattr("sockd.base.postgres.database.Database.run", away)
    with pytest.raises(DatabaseUnavailable):
        await keys.add("ci", ["read"])
    assert keys.list() == []
