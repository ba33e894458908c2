"""Events in PostgreSQL: databases that cannot be used, connections and servers that go away, and workers beside each other."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from sockd.base import extras
from sockd.base.config import EventsConfig, PostgresConfig
from sockd.base.errors import DatabaseUnavailable
from sockd.base.postgres.database import BadDatabase
from sockd.events.event import Event
from sockd.events.event_backend import Death
from sockd.events.postgres.events import PostgresEvents
from sockd.events.schedules.schedule_table import Schedule
from tests.events.backends import PostgresBackends, lost_answers
from tests.events.test_schedules import Calendar
from tests.support.fake_clock import until
from tests.support.servers.postgres_server import PostgresServer, postgres_server, programs

NOW = 1_700_000_000.0
TIMEOUT_S = 60.0
"""Longer than this machine ever stops."""
pytestmark = pytest.mark.anyio


def event() -> Event:
    return Event(0, uuid.uuid4().bytes, "f", "", "aws", 0, NOW, NOW, 0, 0, 0, 2)


async def opened(dsn: str, worker: str = "main", timeout_s: float = TIMEOUT_S) -> PostgresEvents:
    postgres = PostgresConfig(dsn=dsn, worker=worker, timeout_s=timeout_s)
    backend = await PostgresEvents.open(postgres, EventsConfig())
    await backend.recover(NOW)
    return backend


@pytest.fixture
async def backend(postgres_dsn: str) -> AsyncIterator[PostgresEvents]:
    backend = await opened(postgres_dsn)
    yield backend
    await backend.aclose()


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that a test stops and starts."""
    with postgres_server(programs()) as server:
        yield server


@pytest.mark.parametrize(
    ("dsn", "words"),
    [
        ("mysql://root@localhost/x", r"is not a connection string .* write postgresql://"),
        ("postgresql://u@localhost:port/x", "is not a connection string"),
        ("postgresql://u@/x?host=%2Fnowhere", "cannot be reached .*: start it, or correct postgres.dsn"),
        ("postgresql://u@127.0.0.1:1/x", "cannot be reached .*: start it, or correct postgres.dsn"),
    ],
)
async def test_a_dsn_that_leads_nowhere_says_what_to_do(dsn: str, words: str) -> None:
    with pytest.raises(BadDatabase, match=words):
        await opened(dsn)


async def test_a_role_or_a_database_that_is_not_there_is_named(postgres: PostgresServer) -> None:
    with pytest.raises(BadDatabase, match=r'role "nobody" does not exist.*create the role'):
        await opened(postgres.dsn("public", user="nobody"))
    with pytest.raises(BadDatabase, match=r'database "none" does not exist.*createdb'):
        await opened(postgres.dsn("public", database="none"))


async def test_without_asyncpg_the_error_names_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "asyncpg", None)
    with pytest.raises(BadDatabase) as caught:
        await opened("postgresql://u@/x")
    assert extras.installing("postgres") in caught.value.message


async def test_tables_of_a_newer_sockd_are_refused_and_stay(backend: PostgresEvents, postgres_dsn: str) -> None:
    async with backend._database._pool.acquire() as connection:
        await connection.execute("UPDATE sockd_schemas SET number = 99")
    with pytest.raises(BadDatabase, match=r"schema 99, this one knows 2.*start that version"):
        await opened(postgres_dsn)


async def test_workers_that_start_at_the_same_time_make_the_tables_once(postgres_dsn: str) -> None:
    backends = await asyncio.gather(*(opened(postgres_dsn, f"w{number}") for number in range(4)))
    await asyncio.gather(*(backend.aclose() for backend in backends))


async def test_a_worker_changes_no_event_of_another(backend: PostgresEvents, postgres_dsn: str) -> None:
    other = await opened(postgres_dsn, "other")
    made = event()
    await backend.accept(made, b"{}")
    assert (await other.payload(made), await other.begin(made)) == (None, None)
    await other.end(made)
    assert (await other.bury(made, Death(NOW, "why"))).buried == 0
    assert (await other.recover(NOW)).waiting == []
    assert await backend.payload(made) == b"{}"
    await other.aclose()


async def test_a_worker_whose_name_another_has_taken_changes_nothing_any_more(
    backend: PostgresEvents, postgres_dsn: str
) -> None:
    first, second = event(), event()
    await backend.accept(first, b"{}")
    await backend.begin(first)
    successor = await opened(postgres_dsn)
    await backend.end(first)
    await backend.note(first)
    await backend.interrupt()
    assert (await backend.bury(first, Death(NOW, "why"))).buried == 0
    await backend.forward(first, second, b"")
    assert second.seq == 0
    for verb in (backend.accept(second, b"{}"), backend.accept(second, b"{}", b"key")):
        with pytest.raises(DatabaseUnavailable, match="another worker has started as 'main'"):
            await verb
    recovered = await successor.recover(NOW)
    assert ([each.id for each in recovered.waiting], len(recovered.suspects)) == ([first.id], 1)
    assert await successor.accept(second, b"{}", b"key") == second.id
    await successor.aclose()


async def test_events_that_are_accepted_begun_and_ended_at_the_same_time_are_distinguished(
    backend: PostgresEvents,
) -> None:
    made = [event() for _ in range(100)]
    await asyncio.gather(*(backend.accept(each, each.id) for each in made))
    assert sorted(each.seq for each in made) == [each.seq for each in made]
    assert await asyncio.gather(*map(backend.begin, made)) == [each.id for each in made]
    gone = made.pop()
    await backend.end(gone)
    assert await asyncio.gather(*map(backend.begin, (gone, made[0]))) == [None, made[0].id]
    async with backend._database._pool.acquire() as connection:
        assert await connection.fetchval("SELECT count(*) FROM events WHERE running") == 99
    await asyncio.gather(*map(backend.end, made))
    assert (await backend.recover(NOW)).waiting == []
    async with backend._database._pool.acquire() as connection:
        assert await connection.fetchval("SELECT count(*) FROM bodies") == 0


async def test_a_verb_is_the_last_that_its_connection_asks(backend: PostgresEvents, postgres: PostgresServer) -> None:
    made = event()
    await backend.accept(made, b"{}")
    assert await backend.payload(made) == b"{}"
    last = postgres.run(
        "SELECT query FROM pg_stat_activity WHERE application_name = 'sockd' ORDER BY state_change DESC LIMIT 1"
    )
    assert last.startswith("SELECT body FROM bodies")


async def test_a_tick_that_several_workers_see_is_made_by_one(backend: PostgresEvents, postgres_dsn: str) -> None:
    schedule = Schedule(name="s", function="f", expression="rate(1 minute)", created_at=NOW, next_at=NOW + 60)
    await backend.put_schedule(schedule)
    backends = [backend, *[await opened(postgres_dsn, name) for name in ("a", "b")]]
    for _ in range(20):
        ticked = msgspec.structs.replace(schedule, next_at=schedule.next_at + 60, last_at=schedule.next_at)
        ticks = await asyncio.gather(*(each.tick(schedule, ticked, event(), b"{}") for each in backends))
        assert sorted(ticks) == [False, False, True]
        schedule = ticked
    waiting = [len((await each.recover(NOW)).waiting) for each in backends]
    assert sum(waiting) == 20
    for each in backends[1:]:
        await each.aclose()


async def test_a_verb_whose_connection_is_cut_is_done_once(backend: PostgresEvents, postgres: PostgresServer) -> None:
    made = [event() for _ in range(20)]
    for number, each in enumerate(made):
        if number % 4 == 0:
            postgres.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sockd'")
        assert await backend.accept(each, b"{}", b"%d" % number) == each.id
    assert [each.id for each in (await backend.recover(NOW)).waiting] == [each.id for each in made]


async def test_a_verb_that_is_done_again_after_a_lost_answer_changes_nothing(backend: PostgresEvents) -> None:
    made, follower = event(), event()
    for _ in range(2):
        assert await backend.accept(made, b"{}", b"key") == made.id
    for _ in range(2):
        await backend.forward(made, follower, b"record")
    schedule = Schedule(name="s", function="f", expression="rate(1 minute)", created_at=NOW, next_at=NOW + 60)
    await backend.put_schedule(schedule)
    ticked, tick = msgspec.structs.replace(schedule, next_at=NOW + 120), event()
    for _ in range(2):
        assert await backend.tick(schedule, ticked, tick, b"tick")
    assert (await backend.recover(NOW)).waiting == [follower, tick]


@pytest.mark.parametrize("key", [b"", b"key"])
async def test_an_accept_that_has_failed_is_undone_by_the_next(
    backend: PostgresEvents, postgres_dsn: str, key: bytes
) -> None:
    first, again = event(), event()
    with lost_answers(backend), pytest.raises(DatabaseUnavailable):
        await backend.accept(first, b"{}", key)
    assert await backend.payload(msgspec.structs.replace(first, seq=1)) == b"{}"
    assert (await backend.accept(again, b"{}", key), again.seq > 0) == (again.id, True)
    assert (await backend.recover(NOW)).waiting == [again]
    async with backend._database._pool.acquire() as connection:
        assert await connection.fetchval("SELECT count(*) FROM bodies") == 1


async def test_a_failed_accept_committed_later_is_undone_when_its_key_comes_again(
    backend: PostgresEvents, postgres: PostgresServer
) -> None:
    first, again = event(), event()
    may_commit = asyncio.Event()
    with lost_answers(backend, may_commit.wait), pytest.raises(DatabaseUnavailable):
        await backend.accept(first, b"{}", b"key")
    accepting = asyncio.ensure_future(backend.accept(again, b"{}", b"key"))
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    while await backend._database.value(waiting) == 0:  # until it waits for the key of the first
        assert not accepting.done()
    may_commit.set()
    assert (await accepting, again.seq > 0) == (again.id, True)
    assert (await backend.recover(NOW)).waiting == [again]


async def test_an_accept_that_has_failed_runs_if_the_worker_starts_again(
    backend: PostgresEvents, postgres_dsn: str
) -> None:
    first, second = event(), event()
    with lost_answers(backend), pytest.raises(DatabaseUnavailable):
        await backend.accept(first, b"{}", b"key")
    successor = await opened(postgres_dsn)
    with pytest.raises(DatabaseUnavailable, match="another worker has started as 'main'"):
        await backend.accept(second, b"{}")
    assert await successor.accept(second, b"{}", b"key") == first.id
    assert [each.id for each in (await successor.recover(NOW)).waiting] == [first.id]
    await successor.aclose()


@pytest.mark.parametrize(("late_s", "expected"), [(5, 1), (600, 0)])
async def test_a_tick_whose_answer_is_lost_is_made_once_and_others_follow(
    tmp_path: Path, postgres_dsn: str, late_s: int, expected: int
) -> None:
    calendar = Calendar(tmp_path, PostgresBackends(postgres_dsn), missed="skip")
    async with calendar.living() as (events, schedules):
        await schedules.put("s", "f", "rate(1 minute)", timezone="UTC", event=b"")
        with lost_answers(events.backend):
            calendar.clock.pass_by(60 + late_s)
            await until(lambda: schedules.idle)
        assert calendar.functions.ran == []
        await calendar.passes(events, schedules, 10)
        assert len(calendar.functions.ran) == expected
        await calendar.passes(events, schedules, 60)
        assert len(calendar.functions.ran) == expected + 1


async def test_what_was_accepted_survives_a_crash_of_the_server(own_server: PostgresServer) -> None:
    backend = await opened(own_server.dsn("public"))
    made = [event() for _ in range(10)]
    for each in made:
        await backend.accept(each, b"{}")
    own_server.crash()
    with pytest.raises(DatabaseUnavailable):
        await backend.accept(event(), b"{}")
    own_server.start()
    await backend.end(made[0])
    assert [each.id for each in (await backend.recover(NOW)).waiting] == [each.id for each in made[1:]]
    await backend.aclose()


async def test_a_server_that_answers_nothing_is_given_up_and_blocks_no_one(own_server: PostgresServer) -> None:
    backend = await opened(own_server.dsn("public"), timeout_s=2.0)
    server = _processes(own_server)
    for pid in server:
        os.kill(pid, signal.SIGSTOP)
    try:
        asked, turns = asyncio.ensure_future(backend.accept(event(), b"{}")), 0
        began = time.monotonic()
        while not asked.done():
            await asyncio.sleep(0)
            turns += 1
        with pytest.raises(DatabaseUnavailable, match="PostgreSQL cannot be used now"):
            await asked
        assert time.monotonic() - began < 20 and turns > 100
    finally:
        for pid in server:
            os.kill(pid, signal.SIGCONT)
    made = event()
    assert await backend.accept(made, b"{}") == made.id
    await backend.aclose()


def _processes(server: PostgresServer) -> list[int]:
    """The server's first process, and its children."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return [server.pid, *map(int, children)]
