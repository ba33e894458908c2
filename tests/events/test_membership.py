"""Workers of one group, each with its events and schedules: what becomes of those of a worker that is gone, and who ticks."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sockd.base.config import EventsConfig, GroupConfig, PostgresConfig
from sockd.events.destinations import Directories
from sockd.events.dispatcher import Functions
from sockd.events.event_configs import EventInvokeConfig
from sockd.events.events import Events
from sockd.events.membership import LOOKS, SOON_S, Membership
from sockd.events.postgres.events import PostgresEvents
from sockd.events.schedules.schedules import Schedules
from sockd.http.server.messages.answers import error_body
from tests.events.harness import FakeFunctions
from tests.support.fake_clock import FakeClock, until

GROUP = GroupConfig(name="g")
MINUTE_S = 60.0
pytestmark = pytest.mark.anyio


@dataclass
class Member:
    """A worker of the group, whose clock stands still unless a test lets time pass."""

    backend: PostgresEvents
    events: Events
    schedules: Schedules
    membership: Membership
    functions: FakeFunctions
    clock: FakeClock
    divided: list[Sequence[str]]
    """The workers that divide limits, at each report."""
    said: dict[str, Any]
    """What the worker reports of itself."""
    nodes: list[Mapping[str, str]]
    """The cache nodes of the group, at each report."""
    claims: list[Mapping[str, str]]
    """What the others claim of functions' concurrency, at each report."""

    @property
    def ran(self) -> list[bytes]:
        """The payloads of what has run."""
        return [payload for _, payload, _ in self.functions.ran]

    async def settled(self) -> None:
        await until(lambda: self.schedules.idle and not self.events.depth()["running"])


Start = Callable[..., Awaitable[Member]]


@pytest.fixture
async def start(postgres_dsn: str, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a worker of the group; all end with the test."""
    async with AsyncExitStack() as stack:

        async def start(name: str, **settings: Any) -> Member:
            clock, divided, said = FakeClock(), list[Sequence[str]](), dict[str, Any]()
            claims = list[Mapping[str, str]]()

            def divide(workers: Sequence[str], theirs: Mapping[str, str]) -> bool:
                divided.append(workers)
                is_other = bool(claims) and claims[-1] != theirs
                claims.append(theirs)
                return is_other

            nodes = list[Mapping[str, str]]()
            config, functions = EventsConfig(**settings), FakeFunctions(clock)
            functions.do["f"] = lambda payload: b'"ok"'
            postgres = PostgresConfig(dsn=postgres_dsn, worker=name, timeout_s=60.0)
            backend = await PostgresEvents.open(postgres, config, silent_s=GROUP.silent_s)
            recovered = await backend.recover(clock.now())
            calls = Functions(
                functions.invoke, functions.check, lambda name: functions.places, error_body, functions.incarnation
            )
            events = Events(backend, recovered, calls, Directories(tmp_path / name, {}), config, clock)
            stack.push_async_callback(events.aclose)
            schedules = Schedules(events, recovered.schedules, functions.check, backend.group.schedule)
            stack.push_async_callback(schedules.aclose)
            membership = Membership(
                backend.group, events, schedules, GROUP, lambda: {"name": name, **said}, divide, nodes.append
            )
            stack.push_async_callback(membership.aclose)
            events.start()
            schedules.start(clock.alarm)
            await membership.beat()
            return Member(backend, events, schedules, membership, functions, clock, divided, said, nodes, claims)

        yield start


async def silence(member: Member, name: str) -> None:
    """Let a worker report without a gap for so long that another one, which reports nothing, is silent."""
    for _ in range(math.ceil(GROUP.silent_s / GROUP.heartbeat_s)):
        member.clock.pass_by(GROUP.heartbeat_s)
        await member.membership.report()
    await silent_rows(member, name)


async def silent_rows(member: Member, name: str) -> None:
    await member.backend._database.value("UPDATE workers SET seen_at = seen_at - 2 * silent_s WHERE id = $1", name)


async def reported(member: Member, times: int) -> None:
    await until(lambda: len(member.divided) == times)


async def report_soon(member: Member) -> None:
    """Wait until a worker is to report soon, and let the time pass."""
    await until(lambda: member.clock.next_in() == pytest.approx(SOON_S))
    member.clock.pass_by(1.01 * SOON_S)


async def accept(member: Member, payload: bytes = b"1") -> None:
    await member.events.accept("f", "", payload, source="run")


async def test_a_silent_workers_events_run_on_another_and_the_suspects_later(start: Start) -> None:
    dying, living = await start("w1"), await start("w2", death_delay_s=10.0)
    dying.functions.holding, dying.functions.places = asyncio.Event(), 1
    for payload in (b"1", b"2"):
        await accept(dying, payload)
    await until(lambda: dying.functions.at_once)
    await accept(living, b"3")
    await living.settled()
    await silence(living, "w1")
    await living.membership.beat()
    assert (living.ran, living.events.status()["suspects"]) == ([b"3"], 1)
    living.clock.pass_by(10.0)
    await until(lambda: len(living.ran) == 3 and not sum(living.events.depth().values()))
    assert (living.ran, living.functions.most_at_once) == ([b"3", b"1", b"2"], 1)


async def test_workers_learn_what_the_others_claim_and_answer_at_once(start: Start) -> None:
    first, second = await start("w1"), await start("w2")
    first.said["claims"] = {"f": [8, 5]}
    await first.membership.report()
    second.said["claims"] = {"f": [0, 1]}
    await second.membership.report()
    assert len(second.claims) == 2 and json.loads(second.claims[-1]["w1"]) == {"f": [8, 5]}
    await first.membership.report()
    assert json.loads(first.claims[-1]["w2"]) == {"f": [0, 1]}
    first.said["claims"] = {}
    await first.membership.report()
    await second.membership.report()
    assert second.claims[-1] == {}


async def test_a_worker_that_is_asked_for_reports_at_once_and_not_again_and_again(start: Start) -> None:
    member = await start("w1")
    member.membership.start()
    await until(lambda: len(member.divided) == 2)
    for _ in range(5):
        member.membership.report_soon()
    await until(lambda: len(member.divided) == 3)
    member.membership.report_soon()
    assert len(member.divided) == 3
    member.clock.pass_by(SOON_S)
    await until(lambda: len(member.divided) == 4)


async def test_a_new_claim_is_answered_before_the_next_heartbeat_and_the_answer_read(start: Start) -> None:
    first, second = await start("w1"), await start("w2")
    for member in (first, second):
        member.membership.start()
        await reported(member, 2)
    first.said["claims"] = {"f": [8, 5]}
    second.said["claims"] = {"f": [0, 1]}
    first.membership.report_soon()
    await reported(first, 3)
    await until(lambda: "w1" in second.claims[-1])
    for reports in range(4, 4 + LOOKS):
        await report_soon(first)
        await reported(first, reports)
    assert json.loads(first.claims[-1]["w2"]) == {"f": [0, 1]}
    await until(lambda: first.clock.next_in() == pytest.approx(GROUP.heartbeat_s))
    assert len(second.divided) == 3, "the same claim is no news"


async def test_a_report_returns_the_cache_nodes_of_live_workers_also_of_one_that_drains(start: Start) -> None:
    first, second, third = await start("w1"), await start("w2"), await start("w3")
    assert [each.nodes[-1] for each in (first, second, third)] == [{}, {}, {}]
    first.said.update(cache_node="10.0.0.1:7100")
    second.said.update(cache_node="10.0.0.2:7100", draining=True)
    for each in (first, second, third):
        await each.membership.report()
    assert second.nodes[-1] == third.nodes[-1] == {"w1": "10.0.0.1:7100", "w2": "10.0.0.2:7100"}
    await silent_rows(third, "w1")
    await third.membership.report()
    assert third.nodes[-1] == {"w2": "10.0.0.2:7100"}


async def test_an_event_during_which_too_many_workers_died_is_a_dead_letter(start: Start) -> None:
    dying, living = await start("w1"), await start("w2", max_deaths=1)
    dying.functions.holding = asyncio.Event()
    await accept(dying)
    await until(lambda: dying.functions.at_once)
    await silence(living, "w1")
    await living.membership.beat()
    await until(lambda: living.events.dead())
    assert (living.ran, living.events.endings()) == ([], {"dead": 1})


async def test_a_worker_that_was_frozen_ends_nothing_of_what_it_ran_and_accepts_again(start: Start) -> None:
    frozen, living = await start("w1"), await start("w2", death_delay_s=0.0)
    frozen.functions.holding = living.functions.holding = asyncio.Event()
    await accept(frozen)
    await until(lambda: frozen.functions.at_once)
    await silence(living, "w1")
    await living.membership.beat()
    await until(lambda: living.functions.at_once)
    await frozen.membership.beat()
    frozen.functions.holding.set()
    await frozen.settled()
    await living.settled()
    assert (frozen.ran, living.ran) == ([b"1"], [b"1"])
    await accept(frozen, b"2")
    await frozen.settled()
    assert (frozen.ran, frozen.events.depth()) == ([b"1", b"2"], {"waiting": 0, "running": 0})
    assert await living.backend._database.value("SELECT count(*) FROM events") == 0


async def test_events_that_another_worker_has_taken_over_are_forgotten_when_due(start: Start) -> None:
    frozen, living = await start("w1"), await start("w2")
    frozen.functions.holding, frozen.functions.places = asyncio.Event(), 1
    for payload in (b"1", b"2"):
        await accept(frozen, payload)
    await silence(living, "w1")
    await living.membership.beat()
    await frozen.membership.beat()
    frozen.functions.holding.set()
    await frozen.settled()
    await until(lambda: not sum(frozen.events.depth().values()))
    assert frozen.ran == [b"1"]


async def test_an_event_that_comes_back_to_a_worker_that_still_runs_it_is_run_once_there(start: Start) -> None:
    frozen, second = await start("w1"), await start("w2", death_delay_s=0.0)
    frozen.functions.holding = asyncio.Event()
    second.functions.places = 0
    await accept(frozen)
    await until(lambda: frozen.functions.at_once)
    await silence(second, "w1")
    await second.membership.beat()
    await frozen.membership.beat()
    await silence(frozen, "w2")
    await frozen.membership.beat()
    frozen.functions.holding.set()
    await frozen.settled()
    assert (frozen.ran, frozen.events.depth()) == ([b"1"], {"waiting": 0, "running": 0})
    assert await frozen.backend._database.value("SELECT count(*) FROM events") == 0


async def test_a_schedule_of_one_worker_is_ticked_once_by_all(start: Start) -> None:
    members = [await start(f"w{number}") for number in range(3)]
    await members[0].schedules.put("s", "f", "rate(1 minute)", timezone="UTC", event=b"")
    for member in members:
        await member.membership.beat()
    for _ in range(5):
        for member in members:
            member.clock.pass_by(MINUTE_S)
        for member in members:
            await member.settled()
    ticks = Counter(number for number, member in enumerate(members) for _ in member.ran)
    assert sum(ticks.values()) == 5, ticks
    assert len({member.schedules.get("s").next_at for member in members}) == 1


async def test_a_schedule_goes_on_when_the_worker_that_made_it_is_gone(start: Start) -> None:
    gone, living = await start("w1"), await start("w2")
    await gone.schedules.put("s", "f", "rate(1 minute)", timezone="UTC", event=b"")
    await gone.schedules.aclose()
    await living.membership.beat()
    living.clock.pass_by(MINUTE_S)
    await living.settled()
    assert len(living.ran) == 1


async def test_a_schedule_whose_function_a_worker_does_not_know_yet_stays(start: Start) -> None:
    first, second = await start("w1"), await start("w2")
    del second.functions.do["f"]
    await first.schedules.put("s", "f", "rate(1 minute)", timezone="UTC", event=b"")
    await second.membership.beat()
    second.clock.pass_by(MINUTE_S)
    await second.settled()
    first.clock.pass_by(MINUTE_S)
    await first.settled()
    assert (len(first.ran), second.ran) == (1, [])
    second.functions.do["f"] = first.functions.do["f"]
    for _ in range(2):  # it reads the schedule again, and ticks
        second.clock.pass_by(MINUTE_S)
        await second.settled()
    assert (len(second.ran), len(first.schedules.all())) == (1, 1)


async def test_a_schedule_that_was_removed_elsewhere_is_gone_at_its_tick(start: Start) -> None:
    first, second = await start("w1"), await start("w2")
    await first.schedules.put("s", "f", "rate(1 minute)", timezone="UTC", event=b"")
    await second.membership.beat()
    await first.schedules.remove("s")
    second.clock.pass_by(MINUTE_S)
    await second.settled()
    assert (second.ran, second.schedules.all()) == ([], [])


async def test_how_events_end_is_followed(start: Start) -> None:
    first, second = await start("w1"), await start("w2")
    await first.events.invoke_configs.put(EventInvokeConfig(function="f", max_retries=7))
    await second.membership.beat()
    found = second.events.invoke_configs.get("f", "")
    assert found is not None and found.max_retries == 7
    await second.events.invoke_configs.remove("f", "")
    await first.membership.beat()
    assert first.events.invoke_configs.get("f", "") is None


async def test_what_one_worker_has_changed_is_followed_without_a_heartbeat(start: Start) -> None:
    first, second = await start("w1"), await start("w2")
    second.membership.start()
    await until(lambda: len(second.divided) == 2)
    await first.events.invoke_configs.put(EventInvokeConfig(function="f", max_retries=7))
    await until(lambda: second.events.invoke_configs.get("f", "") is not None)
    await first.schedules.put("s", "f", "rate(1 minute)", timezone="UTC", event=b"")
    await report_soon(second)
    await until(second.schedules.all)
    await first.schedules.remove("s")
    await report_soon(second)
    await until(lambda: not second.schedules.all())
    await first.events.invoke_configs.remove("f", "")
    await report_soon(second)
    await until(lambda: second.events.invoke_configs.get("f", "") is None)


async def test_after_the_database_was_away_no_one_is_declared_dead(start: Start) -> None:
    first, second = await start("w1"), await start("w2")
    await accept(second)
    first.clock.pass_by(10 * GROUP.silent_s)
    for name in ("w1", "w2"):
        await silent_rows(first, name)
    await first.membership.beat()
    assert await first.backend.group.silent() == ["w2"]
    await second.membership.beat()
    assert await first.backend.group.silent() == []


async def test_a_worker_that_ends_takes_nothing_over(start: Start) -> None:
    ending, dying, living = await start("w1"), await start("w2"), await start("w3")
    dying.events.stop()
    await dying.backend._database.value("SELECT 1")
    ending.membership.stop()
    await silence(living, "w2")
    await ending.membership.beat()
    assert await living.backend.group.silent() == ["w2"]


async def test_limits_are_divided_by_the_workers_that_live_and_take_requests(start: Start) -> None:
    one, other = await start("w1"), await start("w2")
    await one.membership.beat()
    assert (one.divided, other.divided) == ([["w1"], ["w1", "w2"]], [["w1", "w2"]])
    other.said["draining"] = True
    await other.membership.report()
    await one.membership.report()
    assert (one.divided[-1], other.divided[-1]) == (["w1"], ["w1", "w2"])
    other.said["draining"] = False
    await other.membership.report()
    await one.membership.report()
    assert one.divided[-1] == ["w1", "w2"]
    await silent_rows(one, "w2")
    await one.membership.report()
    assert one.divided[-1] == ["w1"]
    await silent_rows(one, "w1")  # of which it learns nothing by reporting
    await other.membership.report()
    await one.membership.report()
    assert one.divided[-1] == ["w1", "w2"]
    await other.backend.interrupt()
    await one.membership.report()
    assert one.divided[-1] == ["w1"]
