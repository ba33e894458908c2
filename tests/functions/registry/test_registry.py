"""What the registry remembers, also of a daemon that was killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sockd.base.errors import NoSuchFunction, NoSuchVersion
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.aliases import Alias
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.function_url import Cors, FunctionUrl
from sockd.functions.registry.provisions import Provision
from sockd.functions.registry.registry import Change, Registry
from sockd.functions.registry.registry_schema import BadRegistry
from sockd.functions.registry.secrets import Vault
from tests.support.old_registry import old_registry

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registry.sqlite"


@pytest.fixture
async def registry(path: Path) -> AsyncIterator[Registry]:
    registry = await Registry.open(path, keep_versions=3)
    yield registry
    await registry.aclose()


async def put(registry: Registry, name: str, digest: str) -> FunctionRecord:
    return await registry.put(name, digest=digest, code_bytes=10, handler="f:f", config="{}", closure="[]")


async def test_what_is_put_is_got_with_its_version_and_times(registry: Registry) -> None:
    first = await put(registry, "f", "d1")
    second = await put(registry, "f", "d2")
    assert registry.get("f") == second
    assert (first.version, second.version) == (1, 2)
    assert second.created_at == first.created_at <= second.published_at


async def test_deploying_the_same_again_changes_nothing(registry: Registry) -> None:
    assert await put(registry, "f", "d1") == await put(registry, "f", "d1") == registry.get("f")
    assert len(registry.versions("f")) == 1


async def test_only_the_newest_versions_are_remembered(registry: Registry) -> None:
    for number in range(1, 6):
        await put(registry, "f", f"d{number}")
    await put(registry, "g", "d1")
    assert [record.version for record in registry.versions("f")] == [5, 4, 3]
    assert registry.digests() == {"d5", "d4", "d3", "d1"}


async def test_functions_are_listed_by_name_with_their_current_version(registry: Registry) -> None:
    assert registry.list() == []
    await put(registry, "b", "d1")
    await put(registry, "a", "d1")
    await put(registry, "a", "d2")
    assert [(record.name, record.digest) for record in registry.list()] == [("a", "d2"), ("b", "d1")]


async def test_a_deleted_function_is_gone_with_all_its_versions(registry: Registry) -> None:
    await put(registry, "f", "d1")
    await put(registry, "f", "d2")
    await registry.delete("f")
    for ask in (registry.get, registry.versions):
        with pytest.raises(NoSuchFunction, match="no function 'f'"):
            ask("f")
    with pytest.raises(NoSuchFunction, match="no function 'f'"):
        await registry.delete("f")
    assert registry.digests() == set()


async def test_a_closed_registry_opens_with_everything_in_it(path: Path) -> None:
    registry = await Registry.open(path)
    record = await put(registry, "f", "d1")
    await registry.aclose()
    registry = await Registry.open(path)
    assert registry.list() == [record]
    await registry.aclose()


async def test_a_killed_daemon_loses_no_deploy(path: Path) -> None:
    script = f"""
import asyncio, os, signal
from pathlib import Path
from sockd.functions.registry.registry import Registry
async def deploy():
    registry = await Registry.open(Path({str(path)!r}))
    for number in range(50):
        await registry.put("f", digest=f"d{{number}}", code_bytes=1, handler="f:f", config="{{}}", closure="")
    registry._store._run("BEGIN IMMEDIATE")
    registry._store._run("DELETE FROM functions")
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(deploy())
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    registry = await Registry.open(path)
    assert registry.get("f").version == 50
    await registry.aclose()


async def test_a_failed_put_leaves_the_current_version(registry: Registry) -> None:
    before = await put(registry, "f", "d1")
    with pytest.raises(sqlite3.Error):
        await registry.put("f", digest=None, code_bytes=1, handler="", config="{}", closure="")  # type: ignore[arg-type]
    assert registry.get("f") == before
    assert (await put(registry, "f", "d2")).version == 2


async def test_secrets_in_the_file_are_for_its_owner_only(registry: Registry, path: Path) -> None:
    await put(registry, "f", "d1")
    for file in os.listdir(path.parent):
        assert stat.S_IMODE((path.parent / file).stat().st_mode) == 0o600


async def test_a_damaged_file_is_refused_with_how_to_rebuild_it(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(BadRegistry, match=r"damaged .* Restore a backup .* deploy all functions again"):
        await Registry.open(path)


async def test_damage_in_the_middle_of_the_file_is_found_at_start(path: Path) -> None:
    registry = await Registry.open(path)
    for number in range(200):
        await registry.put(
            f"f{number}", digest="d", code_bytes=1, handler="f:f", config=f'{{"x":"{"x" * 200}"}}', closure=""
        )
    await registry.aclose()
    data = bytearray(path.read_bytes())
    for page in range(4096, len(data), 4096):
        data[page : page + 100] = os.urandom(100)
    path.write_bytes(data)
    with pytest.raises(BadRegistry, match="damaged"):
        await Registry.open(path)


async def test_the_file_of_a_newer_sockd_is_refused_and_left_alone(path: Path) -> None:
    await (await Registry.open(path)).aclose()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(BadRegistry, match=r"newer sockd \(schema 99, this one knows 8\)"):
        await Registry.open(path)


async def test_a_database_of_something_else_is_refused(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE cookies (value)")
    database.close()
    with pytest.raises(BadRegistry, match="something else"):
        await Registry.open(path)


@pytest.mark.parametrize("schema", [1, 2])
async def test_the_file_of_an_older_sockd_is_given_what_is_new(path: Path, schema: int) -> None:
    old_registry(path, schema, functions=2).close()
    registry = await Registry.open(path)
    assert [(record.name, record.digest) for record in registry.list()] == [("f1", "d"), ("f2", "d")]
    assert (await registry.publish("f1", 1, "")).number == 1
    await registry.aclose()
    registry = await Registry.open(path)
    assert list(registry.of("f1").publications) == [1]
    await registry.aclose()


async def test_everything_of_a_function_is_brought_along(path: Path) -> None:
    old = old_registry(path, 4, functions=2)
    old.executescript(
        """
        INSERT INTO publications VALUES ('f1', 1, 1, 'first', 6.0), ('f1', 3, 1, 'third', 7.0);
        INSERT INTO numbers VALUES ('f1', 3), ('gone', 9);
        INSERT INTO aliases VALUES ('f1', 'prod', '1', '3', 0.25, 'words', 'r1');
        INSERT INTO provisions VALUES ('f1', 'prod', 2, 8.0);
        INSERT INTO function_urls VALUES
            ('id1', 'f1', 'prod', 'AWS_IAM', 'BUFFERED', '{"AllowOrigins":["*"]}', 9.0, 9.5),
            ('id2', 'f1', '', 'NONE', 'RESPONSE_STREAM', 'null', 9.0, 9.0);
        """
    )
    old.close()
    registry = await Registry.open(path)
    for _ in range(2):
        f1 = registry.of("f1")
        assert [(each.number, each.version, each.description) for each in f1.publications.values()] == [
            (1, 1, "first"),
            (3, 1, "third"),
        ]
        assert f1.alias("prod") == Alias("f1", "prod", "1", "3", 0.25, "words", "r1")
        assert list(registry.provisions()) == [Provision("f1", "prod", 2, 8.0)]
        cors = Cors(allow_origins=["*"])
        assert registry.url("id1") == FunctionUrl("id1", "f1", "prod", "AWS_IAM", "BUFFERED", cors, 9.0, 9.5)
        assert registry.url("id2") == FunctionUrl("id2", "f1", "", "NONE", "RESPONSE_STREAM", None, 9.0, 9.0)
        assert (f1.current.created_at, f1.current.published_at) == (5.0, 5.0)
        await registry.aclose()
        registry = await Registry.open(path)  # the same again, from today's tables
    await put(registry, "gone", "d1")
    assert [(await registry.publish(name, 1, "")).number for name in ("f1", "gone")] == [4, 10]
    await registry.aclose()


async def test_a_migration_that_is_broken_off_is_made_again(path: Path) -> None:
    old_registry(path, 4).close()
    script = f"""
import asyncio, os, signal
from pathlib import Path
from sockd.functions.registry import migrations
from sockd.functions.registry.registry import Registry
migrations.COPY = migrations.COPY + "; SELECT killed();"
from sockd.functions.registry import sqlite_store
connect = sqlite_store.sqlite3.connect
def connected(*args, **kwargs):
    database = connect(*args, **kwargs)
    database.create_function("killed", 0, lambda: os.kill(os.getpid(), signal.SIGKILL))
    return database
sqlite_store.sqlite3.connect = connected
asyncio.run(Registry.open(Path({str(path)!r})))
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    registry = await Registry.open(path)
    assert [record.name for record in registry.list()] == ["f1"]
    await registry.aclose()


async def test_what_an_older_sockd_has_sealed_is_still_sealed(path: Path) -> None:
    config = FunctionConfig(env={"SECRET": "hidden-4711"}).to_json()
    vault = Vault.at(path.parent / "secret.key")
    vault.make_key()
    old_registry(path, 3, config=vault.seal("f1", config)).close()
    registry = await Registry.open(path)
    assert registry.get("f1").config == config
    await registry.publish("f1", 1, "")
    assert registry.of("f1").published(1)[1].config == config
    await registry.aclose()
    assert b"hidden-4711" not in path.read_bytes()


async def test_what_is_published_is_remembered_for_as_long_as_it_is(registry: Registry) -> None:
    for number in range(1, 8):
        await put(registry, "f", f"d{number}")
        if number in (1, 2):
            await registry.publish("f", number, f"no. {number}")
    assert [record.version for record in registry.versions("f")] == [7, 6, 5, 2, 1]
    publication, record = registry.of("f").published(2)
    assert (publication.description, record.digest) == ("no. 2", "d2")
    assert registry.digests() == {"d1", "d2", "d5", "d6", "d7"}
    await registry.unpublish("f", 1)
    assert registry.digests() == {"d2", "d5", "d6", "d7"}
    with pytest.raises(NoSuchVersion, match="no version or alias '1'"):
        registry.of("f").published(1)
    await registry.delete("f")
    assert registry.digests() == set() and not registry.of("f").publications


async def test_a_number_is_used_once(registry: Registry) -> None:
    await put(registry, "f", "d1")
    assert [(await registry.publish("f", 1, "")).number for _ in range(2)] == [1, 2]
    await registry.unpublish("f", 2)
    await registry.delete("f")
    await put(registry, "f", "d1")
    assert (await registry.publish("f", 1, "")).number == 3


async def test_aliases_and_provisions_go_with_what_they_hang_on(registry: Registry) -> None:
    await put(registry, "f", "d1")
    await registry.publish("f", 1, "")
    alias = Alias("f", "prod", "1", "2", 0.25, "words", "r1")

    async def change(do: Change) -> FunctionAggregate:
        return await registry.change("f", do)

    async def provide(qualifier: str) -> None:
        await change(lambda function: function.with_provision(Provision("f", qualifier, 3, 1.0)))

    await change(lambda function: function.with_alias(alias))
    assert registry.of("f").alias("prod") == alias
    changed = await change(lambda function: function.with_alias(replace(alias, version="2")))
    assert [each.version for each in changed.aliases.values()] == ["2"]
    await provide("prod")
    await provide("1")
    assert [each.qualifier for each in registry.provisions()] == ["1", "prod"]
    await change(lambda function: function.without_alias("prod"))
    await registry.unpublish("f", 1)
    assert list(registry.provisions()) == []
    await provide("1")
    await change(lambda function: function.with_alias(alias))
    await registry.delete("f")
    assert list(registry.provisions()) == []
    with pytest.raises(NoSuchVersion):
        registry.of("f").alias("prod")
    with pytest.raises(NoSuchFunction):
        await provide("1")
