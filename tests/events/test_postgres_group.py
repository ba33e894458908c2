"""Groups of workers in PostgreSQL: who is silent, who takes over, and what a worker changes whose epoch is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from sockd.base.config import EventsConfig, PostgresConfig
from sockd.base.errors import DatabaseUnavailable
from sockd.events.event_backend import Death
from sockd.events.event_configs import EventInvokeConfig
from sockd.events.postgres.events import PostgresEvents
from sockd.events.postgres.group import OtherGroup
from sockd.events.schedules.schedule_table import Schedule
from tests.events.backends import lost_answers
from tests.events.test_event_backend import NOW, accepted, event

Open = Callable[..., Awaitable[PostgresEvents]]
SILENT_S = 60.0
pytestmark = pytest.mark.anyio


@pytest.fixture
async def start(postgres_dsn: str) -> AsyncIterator[Open]:
    """Starts a worker of the group."""
    opened: list[PostgresEvents] = []

    async def start(name: str, *, silent_s: float = SILENT_S) -> PostgresEvents:
        postgres = PostgresConfig(dsn=postgres_dsn, worker=name, timeout_s=60.0)
        backend = await PostgresEvents.open(postgres, EventsConfig(), silent_s=silent_s)
        opened.append(backend)
        await backend.recover(NOW + len(opened))
        return backend

    yield start
    for backend in opened:
        await backend.aclose()


@pytest.fixture
async def worker(start: Open) -> PostgresEvents:
    return await start("w1")


@pytest.fixture
async def other(start: Open) -> PostgresEvents:
    return await start("w2")


async def silence(backend: PostgresEvents, name: str = "w1") -> None:
    """Have a worker have reported nothing for long."""
    await backend._database.value("UPDATE workers SET seen_at = seen_at - 2 * silent_s WHERE id = $1", name)


async def test_the_events_of_a_silent_worker_are_taken_over_with_its_death(
    worker: PostgresEvents, other: PostgresEvents
) -> None:
    waits, runs = await accepted(worker), await accepted(worker, "g")
    await worker.begin(runs)
    await silence(other)
    assert await other.group.silent() == ["w1"]
    taken = await other.group.take_over("w1", NOW)
    assert taken is not None
    assert [each.id for each in taken.waiting] == [waits.id, runs.id]
    assert [(each.function, each.deaths) for each in taken.suspects] == [("g", 1)]
    assert taken.waiting[1].attempts == 1
    assert await other.begin(waits) == b"{}"
    assert await other.group.silent() == []


async def test_of_many_workers_one_takes_over_a_silent_one(worker: PostgresEvents, start: Open) -> None:
    await accepted(worker)
    others = [await start(f"other{number}") for number in range(5)]
    await silence(worker)
    taken = await asyncio.gather(*(each.group.take_over("w1", NOW) for each in others))
    assert sorted(len(each.waiting) for each in taken if each is not None) == [1]


async def test_a_worker_that_reports_is_not_taken_over(worker: PostgresEvents, other: PostgresEvents) -> None:
    await silence(worker)
    assert await other.group.silent() == ["w1"]
    assert await worker.group.report(b"{}") is not None
    assert (await other.group.silent(), await other.group.take_over("w1", NOW)) == ([], None)


async def test_a_worker_without_a_group_is_never_declared_dead(start: Open, other: PostgresEvents) -> None:
    alone = await start("alone", silent_s=0.0)
    await silence(other, "alone")
    assert (await other.group.silent(), await other.group.take_over("alone", NOW)) == ([], None)
    assert [each.name for each in await other.group.members()] == ["w2"]
    await accepted(alone)


async def test_a_worker_that_is_silent_itself_takes_no_one_over(
    worker: PostgresEvents, other: PostgresEvents, start: Open
) -> None:
    for name in ("w1", "w2"):
        await silence(worker, name)
    assert await (await start("w3")).group.take_over("w2", NOW) is not None
    assert await other.group.take_over("w1", NOW) is None


async def test_a_worker_that_was_declared_dead_changes_nothing_and_joins_again(
    worker: PostgresEvents, other: PostgresEvents
) -> None:
    made, follower = await accepted(worker), event()
    await worker.begin(made)
    await silence(other)
    assert await other.group.take_over("w1", NOW) is not None
    assert await worker.group.report(b"{}") is None
    for _ in range(2):
        await worker.note(msgspec.structs.replace(made, attempts=7))
        await worker.end(made)
        await worker.interrupt()
        await worker.forward(made, follower, b"record")
        assert (await worker.bury(made, Death(NOW, "why"))).buried == 0
        assert (follower.seq, await worker.begin(made), await other.payload(made)) == (0, None, b"{}")
        await worker.group.join_again()  # and nothing with its new epoch either
    assert await worker.group.report(b"{}") is not None
    await accepted(worker)
    assert [each.attempts for each in (await other.recover(NOW)).waiting] == [1]


async def test_a_worker_cannot_accept_before_it_has_joined_again(worker: PostgresEvents, other: PostgresEvents) -> None:
    await silence(other)
    await other.group.take_over("w1", NOW)
    with pytest.raises(DatabaseUnavailable, match="silent for too long"):
        await worker.accept(event(), b"{}")
    assert await worker.group.join_again()
    await accepted(worker)


async def test_a_worker_whose_name_another_has_taken_does_not_join_again(worker: PostgresEvents, start: Open) -> None:
    namesake = await start("w1")
    assert (await worker.group.report(b"{}"), await worker.group.join_again()) == (None, False)
    assert await namesake.group.report(b"{}") is not None


async def test_a_worker_joins_again_where_the_answer_of_it_was_lost(
    worker: PostgresEvents, other: PostgresEvents
) -> None:
    await silence(other)
    await other.group.take_over("w1", NOW)
    with lost_answers(worker), pytest.raises(DatabaseUnavailable):
        await worker.group.join_again()
    assert await worker.group.report(b"{}") is None
    assert await worker.group.join_again()
    assert await worker.group.report(b"{}") is not None


async def test_events_are_taken_over_where_the_answer_of_it_was_lost(
    worker: PostgresEvents, other: PostgresEvents
) -> None:
    made = await accepted(worker)
    await silence(other)
    with lost_answers(other):
        taken = await other.group.take_over("w1", NOW)
    assert taken is not None and [each.id for each in taken.waiting] == [made.id]
    assert await other.begin(made) == b"{}"


async def test_what_a_worker_leaves_that_ends_in_order_is_taken_over_at_once(
    worker: PostgresEvents, other: PostgresEvents
) -> None:
    made = await accepted(worker)
    await worker.begin(made)
    await worker.interrupt()
    assert await other.group.silent() == ["w1"]
    taken = await other.group.take_over("w1", NOW)
    assert taken is not None
    assert ([each.id for each in taken.waiting], taken.suspects) == ([made.id], [])


async def test_a_worker_that_is_forgotten_begins_with_a_later_epoch(worker: PostgresEvents, start: Open) -> None:
    other = await start("w2")
    await worker.interrupt()
    await other.group.take_over("w1", NOW)
    assert await other.group.silent() == []
    assert await other._database.value("SELECT count(*) FROM workers WHERE id = 'w1'") == 0
    again = await start("w1")
    assert again._owner.epoch > worker._owner.epoch
    assert await worker.group.report(b"{}") is None


async def test_a_database_is_of_one_group(worker: PostgresEvents, other: PostgresEvents) -> None:
    await asyncio.gather(worker.group.join("g"), other.group.join("g"))
    with pytest.raises(OtherGroup, match="of the group 'g', not of 'h'"):
        await other.group.join("h")


async def test_each_change_of_what_workers_share_has_another_revision(
    worker: PostgresEvents, other: PostgresEvents
) -> None:
    schedule = Schedule(name="s", function="f", expression="rate(1 minute)", created_at=NOW, next_at=NOW + 60)
    config = EventInvokeConfig(function="f", qualifier="$LATEST")
    ticked = msgspec.structs.replace(schedule, next_at=NOW + 120, last_at=NOW + 60)
    revision = await other.group.report(b"{}")
    for verb, has_changed in (
        (lambda: worker.put_schedule(schedule), True),
        (lambda: worker.configure(config), True),
        (lambda: worker.tick(schedule, ticked, event(), b"{}"), False),
        (lambda: accepted(worker), False),
        (lambda: worker.put_schedule(ticked), True),
        (lambda: worker.unconfigure("f", "$LATEST"), True),
        (lambda: worker.remove_schedule("s"), True),
    ):
        await verb()
        before, revision = revision, await other.group.report(b"{}")
        assert (revision != before) == has_changed
    await worker.put_schedule(schedule)
    await worker.configure(config)
    shared = await other.group.shared()
    assert (shared.schedules, shared.configs, shared.waiting) == ([schedule], [config], [])
    assert (await other.group.schedule("s"), await other.group.schedule("none")) == (schedule, None)


async def test_members_are_shown_with_what_they_reported_and_their_events(
    worker: PostgresEvents, other: PostgresEvents
) -> None:
    await accepted(worker)
    await worker.group.report(b'{"version": "1"}')
    first, second = await other.group.members()
    assert (first.name, first.taken_by, bytes(first.about), first.events) == ("w1", "", b'{"version": "1"}', 1)
    assert first.seen_s < SILENT_S and (second.name, second.events) == ("w2", 0)
    await silence(other)
    await other.group.take_over("w1", NOW)
    first, second = await other.group.members()
    assert (first.taken_by, first.events, second.events) == ("w2", 0, 1)
