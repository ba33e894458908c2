"""Answers that workers share: one for each key on all of them, also when a worker dies, and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from sockd.base.config import EventsConfig, HttpConfig, PostgresConfig
from sockd.base.errors import DatabaseUnavailable
from sockd.base.postgres.database import Database
from sockd.events.postgres.events import PostgresEvents
from sockd.http.postgres_answers import PostgresAnswers
from sockd.http.postgres_schema import MIGRATIONS, PART
from sockd.http.replays import KeyReused, Replays
from sockd.http.server.messages.answers import Answer
from tests.http.test_replays import RAN, Counted
from tests.support.fake_clock import until

pytestmark = pytest.mark.anyio
REPLAYED = f"{RAN}x-sockd-replayed: 1\r\n"


class Worker:
    """The replays of one worker."""

    def __init__(self, events: PostgresEvents, database: Database, config: HttpConfig) -> None:
        self.events = events
        self.database = database
        self.answers = PostgresAnswers(database, events.group.owner, config)
        self.replays = Replays(config, self.answers)

    async def once(self, key: str, run: Callable[[], Awaitable[Answer]], body: bytes = b"x", **how: Any) -> Answer:
        return await self.replays.once((key,), body, run, strict=True, **how)

    async def stored(self) -> list[tuple[int | None, int]]:
        rows = await self.database.run(
            lambda connection: connection.fetch("SELECT status, size FROM answers"), begin=False
        )
        return [(status, size) for status, size in rows]


Start = Callable[..., Awaitable[Worker]]


@pytest.fixture
async def start(postgres_dsn: str) -> AsyncIterator[Start]:
    """Starts a worker of the group; all end with the test."""
    async with AsyncExitStack() as stack:

        async def start(name: str, **settings: Any) -> Worker:
            postgres = PostgresConfig(dsn=postgres_dsn, worker=name, timeout_s=60.0)
            events = await PostgresEvents.open(postgres, EventsConfig(), silent_s=15.0)
            stack.push_async_callback(events.aclose)
            await events.recover(0.0)
            database = await Database.open(postgres, part=PART, migrations=MIGRATIONS)
            stack.push_async_callback(database.aclose)
            worker = Worker(events, database, HttpConfig(**settings))
            stack.push_async_callback(worker.answers.aclose)
            return worker

        yield start


async def test_a_retry_through_another_worker_gets_the_answer_of_the_first(start: Start) -> None:
    one, other, run = await start("w1"), await start("w2"), Counted()
    first = await one.once("k", run)
    assert (first, await other.once("k", run)) == (run.answer, Answer(200, REPLAYED, b"1"))
    assert (await one.once("k", run), await other.once("k", run)) == (Answer(200, REPLAYED, b"1"),) * 2
    assert run.runs == 1
    for worker in (one, other, await start("w3")):
        with pytest.raises(KeyReused):
            await worker.once("k", run, b"y")


async def test_a_retry_through_another_worker_waits_for_the_request_that_runs(start: Start) -> None:
    one, other, run = await start("w1"), await start("w2"), Counted()
    run.go.clear()
    asked = [asyncio.ensure_future(worker.once("k", run)) for worker in (one, other, other)]
    await until(lambda: run.runs)
    with pytest.raises(KeyReused):
        await (await start("w3")).once("k", run, b"y")
    run.go.set()
    assert [answer.body for answer in await asyncio.gather(*asked)] == [b"1"] * 3
    assert run.runs == 1


async def test_what_a_dead_worker_ran_is_run_again_and_its_late_answer_is_not_stored(start: Start) -> None:
    dying, other, late, run = await start("w1"), await start("w2"), Counted(Answer(200, RAN, b"late")), Counted()
    late.go.clear()
    asked = asyncio.ensure_future(dying.once("k", late))
    await until(lambda: late.runs)
    waiting = asyncio.ensure_future(other.once("k", run))
    await other.database.value("UPDATE workers SET epoch = epoch + 1 WHERE id = 'w1'")
    assert (await waiting).body == b"1"
    late.go.set()
    assert (await asked).body == b"late"
    assert (await (await start("w3")).once("k", run)).body == b"1"
    assert (late.runs, run.runs) == (1, 1)


async def test_what_was_not_run_or_failed_is_run_by_the_next(start: Start) -> None:
    one, other, run = await start("w1"), await start("w2"), Counted()

    async def breaks() -> Answer:
        raise ValueError

    refused = Counted(Answer(429, "retry-after: 1\r\n", b""))
    assert [(await worker.once("k", refused)).status for worker in (one, other)] == [429, 429]
    with pytest.raises(ValueError):
        await one.once("k", breaks)
    assert (await other.once("k", run)).body == b"1"


async def test_a_client_that_has_hung_up_waits_for_no_answer_of_another_worker(start: Start) -> None:
    one, other, run = await start("w1"), await start("w2"), Counted()
    run.go.clear()
    asked = asyncio.ensure_future(one.once("k", run))
    await until(lambda: run.runs)
    assert (await other.once("k", run, gone=lambda: True)).status == 499
    run.go.set()
    await asked


async def test_stored_answers_are_bounded_by_number_bytes_and_time(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sockd.http.postgres_answers.TRIMMED_AFTER", 1)
    one = await start("w1", replay_answers=3, replay_bytes=5000)
    for number in range(5):
        await one.once(f"k{number}", Counted())
    assert len(await one.stored()) == 3
    await one.once("large", Counted(Answer(200, RAN, bytes(6000))))
    assert await one.stored() == []
    await one.once("k", Counted())
    await one.database.value("UPDATE answers SET until = 0")
    other, again = await start("w2"), Counted()
    await other.once("k", again)
    assert again.runs == 1
    await one.database.value("UPDATE answers SET until = 0")
    await other.once("more", Counted())
    assert len(await one.stored()) == 1


async def test_without_its_database_a_worker_runs_no_key_and_stores_answers_later(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sockd.http.postgres_answers.AGAIN_S", 0.0)
    one, other, run = await start("w1"), await start("w2"), Counted()
    run.go.clear()
    asked = asyncio.ensure_future(one.once("k", run))
    await until(lambda: run.runs)

    async def away(*what: object, **how: object) -> None:
        raise DatabaseUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(Database, "run", away)
        with pytest.raises(DatabaseUnavailable):
            await one.once("new", Counted())
        run.go.set()
        assert (await asked).body == b"1"
        assert (await one.once("k", Counted())).fields == REPLAYED
    assert (await other.once("k", run)).fields == REPLAYED
    assert run.runs == 1
