"""Following: what one registry stores in PostgreSQL another one serves, by notification and without."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

import pytest

from sockd.base.config import PostgresConfig
from sockd.base.errors import DatabaseUnavailable, NoSuchFunction
from sockd.functions.registry.aggregate import FunctionAggregate
from sockd.functions.registry.aliases import Alias
from sockd.functions.registry.following import POLL_S, Following
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.postgres_store import PostgresStore
from sockd.functions.registry.registry import Registry
from sockd.functions.registry.secrets import Vault
from tests.support.ledger import Ledger
from tests.support.servers.postgres_server import PostgresServer, postgres_server, programs

pytestmark = pytest.mark.anyio
SOON_S = 20.0
BLOCKED_S = 0.02
QUIET = "DISABLE TRIGGER notify_of_functions"


class Worker:
    """A registry that follows. `changed` has the names that its follower was called with."""

    def __init__(self, registry: Registry, following: Following) -> None:
        self.registry = registry
        self.following = following
        self.changed: list[str] = []
        self.collected = 0
        self._more = asyncio.Event()
        registry.followers.append(self._follow)

    @classmethod
    async def open(cls, dsn: str, path: Path, timeout_s: float = 5.0) -> Worker:
        config = PostgresConfig(dsn=dsn, timeout_s=timeout_s)
        store = await PostgresStore.open(config, Vault.at(path / "secret.key"))
        registry = Registry(store, stored := await store.read())
        following = Following(registry, config, max((each.revision for each in stored), default=0))
        worker = cls(registry, following)
        following.start(worker._collect)
        return worker

    async def close(self) -> None:
        await self.following.aclose()
        await self.registry.aclose()

    async def put(self, name: str, digest: str) -> FunctionRecord:
        return await self.registry.put(name, digest=digest, code_bytes=1, handler="f:f", config="{}", closure="[]")

    async def when(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON_S):
            while not condition():
                await self._more.wait()

    def has(self, name: str, digest: str) -> Callable[[], bool]:
        return lambda: bool(deploys := self.registry.of(name).deploys) and deploys[-1].digest == digest

    async def _collect(self) -> None:
        self.collected += 1

    def _follow(self, old: FunctionAggregate, new: FunctionAggregate) -> None:
        self.changed.append(new.name)
        self._more.set()
        self._more.clear()


@pytest.fixture
async def workers(postgres_dsn: str, tmp_path: Path) -> AsyncIterator[tuple[Worker, Worker]]:
    one = await Worker.open(postgres_dsn, tmp_path)
    other = await Worker.open(postgres_dsn, tmp_path)
    yield one, other
    await one.close()
    await other.close()


def schema_of(dsn: str) -> str:
    return dsn.partition("search_path=")[2]


async def test_a_change_is_served_by_the_other_worker_within_a_second(workers: tuple[Worker, Worker]) -> None:
    one, other = workers
    await asyncio.sleep(0)
    took_s = []
    for number in range(20):
        began = time.monotonic()
        await one.put("f", f"d{number}")
        await other.when(other.has("f", f"d{number}"))
        took_s.append(time.monotonic() - began)
    assert sorted(took_s)[10] < POLL_S / 2
    await one.registry.change("f", lambda function: function.with_alias(Alias("f", "prod", "$LATEST")))
    await other.when(lambda: "prod" in other.registry.of("f").aliases)


async def test_without_notifications_a_change_is_found_by_looking(
    workers: tuple[Worker, Worker], postgres: PostgresServer, postgres_dsn: str
) -> None:
    one, other = workers
    await asyncio.to_thread(postgres.run, f"ALTER TABLE {schema_of(postgres_dsn)}.functions {QUIET}")
    for number in range(3):
        await one.put("f", f"d{number}")
        began = time.monotonic()
        await other.when(other.has("f", f"d{number}"))
        assert time.monotonic() - began < 2 * POLL_S
    await one.registry.delete("f")
    await other.when(lambda: not other.registry.of("f").deploys)


async def test_removed_functions_are_removed_and_may_come_again(workers: tuple[Worker, Worker]) -> None:
    one, other = workers
    await one.put("f", "d1")
    await one.put("g", "d1")
    await one.registry.publish("g", 1, "")
    await other.when(lambda: bool(other.registry.of("g").publications))
    await one.registry.delete("f")
    await one.registry.delete("g")
    await other.when(lambda: other.registry.list() == [])
    with pytest.raises(NoSuchFunction):
        other.registry.get("g")
    await other.put("f", "d2")
    assert (await other.put("g", "d2")).version == 1
    await one.when(lambda: one.has("f", "d2")() and one.has("g", "d2")())
    assert (await one.registry.publish("g", 1, "")).number == 2


async def test_changes_while_the_connection_was_cut_are_found(
    workers: tuple[Worker, Worker], postgres: PostgresServer
) -> None:
    one, other = workers
    for number in range(3):
        postgres.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sockd follower'")
        await one.put("f", f"d{number}")
        await other.when(other.has("f", f"d{number}"))


async def test_a_worker_serves_what_it_knows_while_the_database_is_away(tmp_path: Path, ledger: Ledger) -> None:
    with postgres_server(programs()) as server:
        one, other = [await Worker.open(server.dsn("public"), tmp_path) for _ in range(2)]
        try:
            await one.put("f", "d1")
            await other.when(other.has("f", "d1"))
            await asyncio.to_thread(server.crash)
            assert other.registry.get("f").digest == "d1"
            await asyncio.to_thread(server.start)
            assert other.registry.get("f").digest == "d1"
            await one.put("f", "d2")
            await other.when(other.has("f", "d2"))
        finally:
            await one.close()
            await other.close()


async def test_a_database_that_answers_nothing_blocks_no_one(tmp_path: Path, ledger: Ledger) -> None:
    with postgres_server(programs()) as server:
        worker = await Worker.open(server.dsn("public"), tmp_path, timeout_s=1.0)
        frozen = [server.pid, *map(int, Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split())]
        try:
            await worker.put("f", "d1")
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)
            assert await longest_step_s(refused(worker, "f", "d2")) < BLOCKED_S
            assert worker.registry.get("f").digest == "d1"
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
            await worker.close()


async def refused(worker: Worker, name: str, digest: str) -> None:
    with pytest.raises(DatabaseUnavailable) as error:
        await worker.put(name, digest)
    assert error.value.status == 503 and error.value.retry_after_s


async def longest_step_s(work: Coroutine[None, None, None]) -> float:
    """The most processor time between two steps of the loop while it did this work. (A call that blocks raises in tests.)"""
    task, longest_s, last_s = asyncio.ensure_future(work), 0.0, time.thread_time()
    while not task.done():
        await asyncio.wait([task], timeout=0.001)
        now_s = time.thread_time()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    await task
    return longest_s


async def test_an_own_change_is_not_shown_a_second_time(workers: tuple[Worker, Worker]) -> None:
    one, other = workers
    await one.put("f", "d1")
    await one.put("g", "d1")
    await other.when(other.has("g", "d1"))
    last = one.following.revision
    await other.put("h", "d1")
    await one.when(one.has("h", "d1"))
    assert one.changed == ["f", "g", "h"] and one.following.revision >= last
    assert other.collected > 0


async def test_one_function_that_cannot_be_read_does_not_hide_the_others(
    workers: tuple[Worker, Worker], postgres: PostgresServer, postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = workers
    await one.put("f", "d1")
    await other.when(other.has("f", "d1"))
    schema = schema_of(postgres_dsn)
    postgres.run(
        f"""UPDATE {schema}.function_revisions SET last = last + 1;
        UPDATE {schema}.functions SET schema = 99, value = '{{"name":7}}',
            revision = (SELECT last FROM {schema}.function_revisions)"""
    )
    await one.put("g", "d1")
    await other.when(other.has("g", "d1"))
    assert other.registry.get("f").digest == "d1"
    assert "this worker does not serve what has changed of f" in caplog.text


async def test_a_newer_sockd_has_its_changes_served_and_not_lost(
    workers: tuple[Worker, Worker], postgres: PostgresServer, postgres_dsn: str
) -> None:
    one, other = workers
    await one.put("f", "d1")
    schema = schema_of(postgres_dsn)
    value = postgres.run(f"SELECT value FROM {schema}.functions")
    await asyncio.to_thread(  # it waits for what the loop has begun to read
        postgres.run,
        f"""ALTER TABLE {schema}.functions ADD COLUMN newer TEXT DEFAULT 'kept';
        ALTER TABLE {schema}.deploys ADD COLUMN newer TEXT DEFAULT 'kept';""",
    )
    await other.put("g", "d1")
    for number in range(50):
        await asyncio.to_thread(
            postgres.run,
            f"""BEGIN; UPDATE {schema}.function_revisions SET last = last + 1;
            UPDATE {schema}.functions SET schema = 99, revision = (SELECT last FROM {schema}.function_revisions),
                value = '{{"newer":{number},{value[1:]}' WHERE name = 'f';
            UPDATE {schema}.deploys SET digest = 'n{number}', newer = 'n{number}' WHERE name = 'f'; COMMIT;""",
        )
        await other.when(other.has("f", f"n{number}"))
        failed = await asyncio.gather(other.put("f", "older"), return_exceptions=True)
        assert getattr(failed[0], "status", None) == 409
        await other.put("g", f"d{number}")
    rows = postgres.run(
        f"SELECT newer FROM {schema}.deploys WHERE name = 'f' UNION ALL SELECT newer FROM {schema}.functions"
    )
    assert rows.splitlines() == ["n49", "kept", "kept"]
    assert '"newer":49' in postgres.run(f"SELECT value FROM {schema}.functions WHERE name = 'f'")
