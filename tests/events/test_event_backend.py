"""The contract of `EventBackend`, on each of its implementations: what one verb changes, and what an error or a death leaves."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import msgspec
import pytest

from sockd.base.config import EventsConfig
from sockd.events.event import Event
from sockd.events.event_backend import Death, EventBackend
from sockd.events.event_configs import EventInvokeConfig
from sockd.events.schedules.schedule_table import Schedule
from tests.events.backends import Backends

NOW = 1_700_000_000.0
pytestmark = pytest.mark.anyio


def event(function: str = "f", size: int = 2, **fields: object) -> Event:
    made = Event(0, uuid.uuid4().bytes, function, "", "aws", 0, NOW, NOW, 0, 0, 0, size)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def schedule(name: str = "s", **fields: object) -> Schedule:
    made = Schedule(name=name, function="f", expression="rate(1 minute)", created_at=NOW, next_at=NOW + 60)
    return msgspec.structs.replace(made, **fields)


async def accepted(backend: EventBackend, function: str = "f", payload: bytes = b"{}", **fields: object) -> Event:
    made = event(function, len(payload), **fields)
    assert await backend.accept(made, payload) == made.id
    assert made.seq
    return made


@pytest.fixture
async def backend(backends: Backends) -> AsyncIterator[EventBackend]:
    backend = await backends.open()
    await backend.recover(NOW)
    yield backend
    await backend.aclose()


async def test_what_was_accepted_and_recorded_is_recovered_in_its_order(
    backend: EventBackend, backends: Backends
) -> None:
    first = await accepted(backend, payload=b'{"a": 1}', trace="00-1", source="schedule:s")
    second = await accepted(backend, "g", qualifier="live", hops=2)
    second.attempts, second.failures, second.throttles, second.due_at = 3, 1, 2, NOW + 60.25
    await backend.note(second)
    await backend.aclose()
    again = await backends.open()
    assert (await again.recover(NOW)).waiting == [first, second]
    assert await again.payload(first) == b'{"a": 1}'
    await again.aclose()


async def test_an_event_that_is_over_is_gone_with_its_payload(backend: EventBackend) -> None:
    made = await accepted(backend)
    assert await backend.begin(made) == b"{}"
    for _ in range(2):  # a verb may be called again
        await backend.end(made)
    assert (await backend.payload(made), await backend.begin(made)) == (None, None)
    assert (await backend.recover(NOW)).waiting == []


async def test_a_key_stands_for_the_first_event_that_came_with_it_for_a_while(backends: Backends) -> None:
    backend = await backends.open(EventsConfig(remember_s=300, max_remembered=2))
    await backend.recover(NOW)
    first, retry, late = event(), event(accepted_at=NOW + 300), event(accepted_at=NOW + 601)
    assert await backend.accept(first, b"{}", b"k1") == first.id
    assert (await backend.accept(retry, b"{}", b"k1"), retry.seq) == (first.id, 0)
    assert await backend.accept(late, b"{}", b"k1") == late.id
    for key in (b"k2", b"k3"):
        await backend.accept(event(accepted_at=NOW + 601), b"{}", key)
    again = event(accepted_at=NOW + 601)
    assert await backend.accept(again, b"{}", b"k1") == again.id  # two are remembered, and it was the oldest of three
    assert len((await backend.recover(NOW)).waiting) == 5
    await backend.aclose()


async def test_calls_with_one_key_at_the_same_time_make_one_event(backend: EventBackend) -> None:
    made = [event() for _ in range(8)]
    ids = await asyncio.gather(*(backend.accept(each, b"{}", b"key") for each in made))
    assert len(set(ids)) == 1
    assert (
        [each.id for each in (await backend.recover(NOW)).waiting] == [each.id for each in made if each.seq] == ids[:1]
    )


async def test_an_event_is_replaced_by_the_one_that_follows_it(backend: EventBackend) -> None:
    made, follower = await accepted(backend), event("g")
    await backend.forward(made, follower, b"record")
    assert (await backend.recover(NOW)).waiting == [follower]
    assert await backend.payload(follower) == b"record"


async def test_an_event_that_dies_keeps_its_payload_and_is_revived_as_new(backend: EventBackend) -> None:
    made = await accepted(backend, payload=b"[1]")
    made.attempts, made.failures = 3, 3
    burial = await backend.bury(made, Death(NOW + 9, "RetriesExhausted", "Value\udcffError", "x\0y" * 10_000))
    assert burial == (1, 0, (1, 3))
    found = await backend.dead_letter(made.id)
    assert found is not None
    letter, payload = found
    assert (payload, letter.reason, letter.error_type, len(letter.error), letter.died_at, letter.attempts) == (
        *(b"[1]", "RetriesExhausted", "Value\\udcffError", 6036),  # room for a message and a stack
        *(NOW + 9, 3),
    )
    (revived,), total = await backend.revive(None, made.id, NOW + 20)
    assert (revived.id, revived.accepted_at, revived.failures, total) == (made.id, NOW + 20, 0, (0, 0))
    assert await backend.payload(revived) == b"[1]"
    assert await backend.revive(None, made.id, NOW + 20) == ([], (0, 0))
    assert (await backend.recover(NOW)).waiting == [revived]


async def test_a_dead_letter_is_buried_once(backend: EventBackend) -> None:
    made = await accepted(backend)
    for _ in range(2):
        assert (await backend.bury(made, Death(NOW, "why"))).total == (1, 2)
    assert await backend.payload(made) is None


async def test_the_oldest_dead_letters_go_when_there_is_no_room(backends: Backends) -> None:
    backend = await backends.open(EventsConfig(max_dead=3, max_dead_bytes=56))
    await backend.recover(NOW)
    burials = [
        await backend.bury(await accepted(backend, payload=bytes(size)), Death(NOW, "why")) for size in (1, 2, 3, 50, 4)
    ]
    assert [each.dropped for each in burials] == [0, 0, 0, 1, 2]
    assert [letter.size for letter in await backend.dead_letters(None, 10)] == [4, 50]
    assert burials[-1].total == (2, 54)
    await backend.aclose()


async def test_dead_letters_are_listed_and_deleted_by_function_and_by_id(backend: EventBackend) -> None:
    made = [await accepted(backend, name) for name in "fgfg"]
    for each in made:
        await backend.bury(each, Death(NOW, "why"))
    assert [letter.id for letter in await backend.dead_letters("f", 1)] == [made[2].id]
    assert [letter.id for letter in await backend.dead_letters(None, 3)] == [made[3].id, made[2].id, made[1].id]
    assert await backend.discard(None, made[0].id) == (1, (3, 6))
    assert await backend.discard(None, made[0].id) == (0, (3, 6))
    assert await backend.discard("g", None) == (2, (1, 2))
    assert await backend.dead_letter(made[1].id) is None
    events, total = await backend.revive("f", None, NOW)
    assert ([each.id for each in events], total) == ([made[2].id], (0, 0))


async def test_a_removed_function_takes_all_but_its_running_events_along(backend: EventBackend) -> None:
    running, waiting, other = [await accepted(backend, name) for name in "ffg"]
    for name in "fg":
        await backend.configure(EventInvokeConfig(function=name))
        await backend.put_schedule(schedule(name, function=name))
    assert await backend.forget("f", NOW, running=[running.seq]) == (1, 0, (1, 2))
    recovered = await backend.recover(NOW)
    assert recovered.waiting == [running, other]
    assert [each.function for each in recovered.configs] == ["g"]
    assert [each.function for each in recovered.schedules] == ["g"]
    assert [(letter.id, letter.reason) for letter in await backend.dead_letters("f", 10)] == [
        (waiting.id, "FunctionRemoved")
    ]
    assert recovered.dead == (1, 2)


async def test_settings_and_schedules_are_kept_replaced_and_removed(backend: EventBackend) -> None:
    config = EventInvokeConfig(function="f", max_retries=0, on_failure="directory:x", modified_at=NOW + 0.5)
    disabled = schedule(qualifier="2", event=b'{"a": 1}', timezone="Europe/Vienna", enabled=False, last_at=NOW)
    await backend.configure(EventInvokeConfig(function="f", max_age_s=60))
    await backend.configure(config)
    await backend.configure(EventInvokeConfig(function="f", qualifier="2"))
    await backend.put_schedule(schedule())
    await backend.put_schedule(disabled)
    await backend.put_schedule(schedule("t", qualifier="2"))
    recovered = await backend.recover(NOW)
    assert [each for each in recovered.configs if each.qualifier == "$LATEST"] == [config]
    assert recovered.schedules == [disabled, schedule("t", qualifier="2")]
    await backend.forget_qualifier("f", "2")
    await backend.unconfigure("f", "$LATEST")
    await backend.put_schedule(schedule("u"))
    await backend.remove_schedule("u")
    recovered = await backend.recover(NOW)
    assert (recovered.configs, recovered.schedules) == ([], [])


async def test_a_tick_and_its_event_are_one(backend: EventBackend) -> None:
    old = schedule()
    await backend.put_schedule(old)
    ticked = msgspec.structs.replace(old, next_at=NOW + 120, last_at=NOW + 60)
    first, second = event(), event()
    assert await backend.tick(old, ticked, first, b"tick")
    assert not await backend.tick(old, ticked, second, b"tick")  # of another who has the schedule as it was
    recovered = await backend.recover(NOW)
    assert (recovered.waiting, recovered.schedules, second.seq) == ([first], [ticked], 0)
    assert await backend.payload(first) == b"tick"
    assert await backend.tick(ticked, msgspec.structs.replace(ticked, next_at=0.0), None, b"")  # a missed one
    assert len((await backend.recover(NOW)).waiting) == 1


async def test_a_schedule_that_was_disabled_or_made_anew_does_not_tick(backend: EventBackend) -> None:
    old = schedule()
    for now in (schedule(enabled=False), schedule(created_at=NOW + 1)):
        await backend.put_schedule(now)
        assert not await backend.tick(old, schedule(next_at=NOW + 120), event(), b"")
        assert (await backend.recover(NOW)).schedules == [now]


async def test_events_that_ran_when_the_daemon_died_are_suspects(backend: EventBackend, backends: Backends) -> None:
    running, waiting = await accepted(backend), await accepted(backend)
    over = await accepted(backend)
    for each in (running, over):
        await backend.begin(each)
    await backend.note(over)
    await backend.aclose()  # `interrupt` has not been called
    for deaths, wait_s in ((1, 10), (2, 20)):
        again = await backends.open()
        recovered = await again.recover(NOW)
        assert recovered.suspects == [(running.seq, "f", deaths, NOW + wait_s)]
        assert [each.attempts for each in recovered.waiting] == [deaths, 0, 0]
        assert waiting in recovered.waiting
        await again.begin(recovered.waiting[0])
        await again.aclose()


async def test_an_orderly_end_makes_no_suspects(backend: EventBackend, backends: Backends) -> None:
    await backend.begin(await accepted(backend))
    await backend.interrupt()
    await backend.aclose()
    again = await backends.open()
    recovered = await again.recover(NOW)
    assert (recovered.suspects, recovered.waiting[0].attempts) == ([], 0)
    await again.aclose()


async def test_a_suspect_that_is_over_and_comes_back_is_as_new(backend: EventBackend, backends: Backends) -> None:
    made = await accepted(backend)
    await backend.begin(made)
    recovered = await backend.recover(NOW)
    assert len(recovered.suspects) == 1
    await backend.bury(recovered.waiting[0], Death(NOW, "WorkerDied"))
    await backend.revive(None, made.id, NOW)
    assert (await backend.recover(NOW)).suspects == []


async def test_many_at_a_time_lose_nothing(backend: EventBackend) -> None:
    made = [event(size=3) for _ in range(300)]
    await asyncio.gather(*(backend.accept(each, b"%d" % number) for number, each in enumerate(made, 100)))
    assert len({each.seq for each in made}) == 300
    await asyncio.gather(*(backend.end(each) for each in made[::2]))
    left = sorted((await backend.recover(NOW)).waiting, key=lambda each: each.id)
    assert left == sorted(made[1::2], key=lambda each: each.id)
    assert await backend.payload(made[1]) == b"101"


async def test_closing_twice_is_closing_once(backend: EventBackend) -> None:
    await backend.aclose()
