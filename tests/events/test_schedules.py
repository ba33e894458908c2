"""Schedules: what expressions mean, and that each tick makes one event, whatever happens to clocks and daemons."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from sockd.base import errors
from sockd.events.events import Events
from sockd.events.schedules.schedule_expressions import BadSchedule, parse
from sockd.events.schedules.schedules import NoSuchSchedule, ScheduleExists, Schedules
from tests.events.harness import Harness, settled
from tests.support.fake_clock import until

HOUR = 3600.0


def ticks(expression: str, start: str, count: int, timezone: str = "UTC") -> list[str]:
    """The next moments, as people there read them."""
    when, zone = parse(expression, timezone), ZoneInfo(timezone)
    moment = since = datetime.fromisoformat(start).replace(tzinfo=zone).timestamp()
    found = []
    for _ in range(count):
        moment = when.after(moment, since=since)
        found.append(datetime.fromtimestamp(moment, zone).isoformat(sep=" ", timespec="seconds") if moment else "never")
    return [each.removesuffix("+00:00") if timezone == "UTC" else each for each in found]


@pytest.mark.parametrize(
    ("expression", "start", "expected"),
    [
        ("rate(5 minutes)", "2026-01-01 00:00:30", ["2026-01-01 00:05:30", "2026-01-01 00:10:30"]),
        ("rate(1 day)", "2026-01-01", ["2026-01-02 00:00:00", "2026-01-03 00:00:00"]),
        ("*/15 9 * * *", "2026-01-01 09:30:00", ["2026-01-01 09:45:00", "2026-01-02 09:00:00"]),
        ("0 9 * * 1-5", "2026-01-02 12:00:00", ["2026-01-05 09:00:00", "2026-01-06 09:00:00"]),
        ("cron(0/10 * * * ? *)", "2026-01-01", ["2026-01-01 00:10:00", "2026-01-01 00:20:00"]),
        ("cron(0 9 ? * MON-FRI *)", "2026-01-02 12:00:00", ["2026-01-05 09:00:00", "2026-01-06 09:00:00"]),
        ("cron(0 9 ? * 2-6 *)", "2026-01-02 12:00:00", ["2026-01-05 09:00:00", "2026-01-06 09:00:00"]),
        ("cron(0 9 ? * 6L *)", "2026-01-01", ["2026-01-30 09:00:00", "2026-02-27 09:00:00"]),
        ("cron(0 9 ? * 3#2 *)", "2026-01-01", ["2026-01-13 09:00:00", "2026-02-10 09:00:00"]),
        ("cron(0 9 ? * L *)", "2026-01-01", ["2026-01-03 09:00:00", "2026-01-10 09:00:00"]),
        ("cron(0 9 L * ? *)", "2026-02-01", ["2026-02-28 09:00:00", "2026-03-31 09:00:00"]),
        ("cron(0 0 1 1 ? 2030)", "2026-01-01", ["2030-01-01 00:00:00", "never"]),
        ("cron(0 0 1 1 ? 2027/2)", "2026-01-01", ["2027-01-01 00:00:00", "2029-01-01 00:00:00"]),
        ("0 0 29 2 *", "2026-01-01", ["2028-02-29 00:00:00", "2032-02-29 00:00:00"]),
    ],
)
def test_when(expression: str, start: str, expected: list[str]) -> None:
    assert ticks(expression, start, 2) == expected


def test_where_clocks_change() -> None:
    berlin = "Europe/Berlin"
    spring = ["2026-03-28 02:30:00+01:00", "2026-03-29 03:00:00+02:00", "2026-03-30 02:30:00+02:00"]
    assert ticks("30 2 * * *", "2026-03-28", 3, berlin) == spring
    autumn = ["2026-10-24 02:30:00+02:00", "2026-10-25 02:30:00+02:00", "2026-10-26 02:30:00+01:00"]
    assert ticks("30 2 * * *", "2026-10-24", 3, berlin) == autumn
    hourly = ["2026-10-25 02:00:00+02:00", "2026-10-25 02:00:00+01:00", "2026-10-25 03:00:00+01:00"]
    assert ticks("0 * * * *", "2026-10-25 01:30:00", 3, berlin) == hourly


@pytest.mark.parametrize(
    "expression",
    [
        *("", "hello", "rate(5)", "rate(0 minutes)", "rate(1 month)", "* * * *", "61 * * * *", "0 0 31 2 *"),
        *("cron(0 9 * * * *)", "cron(0 9 1 * MON *)", "cron(0 9 ? * MON)", "cron(0 9 15W * ? *)", "cron(0 9 1 1 ? 26)"),
        *("cron(0 9 ? * 8 *)", "0 0 * * *\n0 0 * * *"),
    ],
)
def test_what_means_nothing_is_refused(expression: str) -> None:
    with pytest.raises(BadSchedule):
        parse(expression)


@pytest.mark.parametrize("timezone", ["Nowhere/Atall", "../../etc/passwd", "", "\0"])
def test_a_time_zone_is_one_that_is_known(timezone: str) -> None:
    with pytest.raises(BadSchedule):
        parse("0 9 * * *", timezone)


class Calendar(Harness):
    """A harness with schedules."""

    @asynccontextmanager
    async def living(self) -> AsyncIterator[tuple[Events, Schedules]]:
        self.functions.do.setdefault("f", lambda payload: b"1")
        async with self.open() as events:
            schedules = Schedules(events, self.recovered.schedules, self.functions.check)
            schedules.start(self.clock.alarm)
            try:
                yield events, schedules
            finally:
                await schedules.aclose()

    async def passes(self, events: Events, schedules: Schedules, seconds: float) -> None:
        """Time goes by, and what is due is done."""
        ends = self.clock.monotonic() + seconds
        while (left := ends - self.clock.monotonic()) > 0:
            await settled_both(events, schedules)
            self.clock.pass_by(min(left, self.clock.next_in() or left))
        await settled_both(events, schedules)

    def times(self) -> list[str]:
        """`time` of the events that ran."""
        return [json.loads(payload)["time"][11:] for _, payload, _ in self.functions.ran]


async def settled_both(events: Events, schedules: Schedules) -> None:
    for _ in range(3):
        await settled(events)
        await until(lambda: schedules.idle and not sum(events.depth().values()))


@pytest.fixture
def calendar(tmp_path: Path) -> Calendar:
    return Calendar(tmp_path)


@pytest.mark.anyio
async def test_each_tick_makes_one_event(calendar: Calendar) -> None:
    async with calendar.living() as (events, schedules):
        await schedules.put("s", "f", "rate(1 minute)", timezone="UTC", event=b'{"a": 1}')
        await calendar.passes(events, schedules, 300)
        assert calendar.times() == [f"22:{minute}:20Z" for minute in range(14, 19)]
        event = json.loads(calendar.functions.ran[0][1])
        assert (event["source"], event["detail-type"], event["detail"]) == ("aws.events", "Scheduled Event", {"a": 1})
        assert event["resources"] == ["arn:aws:events:local:000000000000:rule/s"]
        assert schedules.get("s").last_at < schedules.get("s").next_at
        assert (schedules.ticks, events.status()["endings"]) == (5, {"succeeded": 5})


@pytest.mark.anyio
@pytest.mark.parametrize(("missed", "expected"), [("once", 1), ("skip", 0)])
async def test_what_was_missed_is_made_up_for_once_or_not(tmp_path: Path, missed: str, expected: int) -> None:
    calendar = Calendar(tmp_path, missed=missed)
    async with calendar.living() as (events, schedules):
        await schedules.put("s", "f", "rate(1 minute)", timezone="UTC", event=b"")
    calendar.clock.pass_by(10 * HOUR)
    async with calendar.living() as (events, schedules):
        await calendar.passes(events, schedules, 30)
        assert len(calendar.functions.ran) == expected
        await calendar.passes(events, schedules, 60)
        assert len(calendar.functions.ran) == expected + 1


@pytest.mark.anyio
async def test_a_clock_that_jumps_neither_storms_nor_silences(calendar: Calendar) -> None:
    async with calendar.living() as (events, schedules):
        await schedules.put("often", "f", "rate(1 minute)", timezone="UTC", event=b"")
        await calendar.passes(events, schedules, 60)
        calendar.clock.jump(5 * HOUR)
        await calendar.passes(events, schedules, 59)
        assert 2 <= len(calendar.functions.ran) <= 3
        calendar.clock.jump(-24 * HOUR)
        before = len(calendar.functions.ran)
        await calendar.passes(events, schedules, 120)
        assert len(calendar.functions.ran) - before == 2


@pytest.mark.anyio
async def test_a_fixed_time_does_not_come_again_when_the_clock_is_set_back_a_little(calendar: Calendar) -> None:
    async with calendar.living() as (events, schedules):
        await schedules.put("daily", "f", "30 22 * * *", timezone="UTC", event=b"")
        await calendar.passes(events, schedules, 1200)
        assert len(calendar.functions.ran) == 1
        calendar.clock.jump(-HOUR)
        await calendar.passes(events, schedules, 2 * HOUR)
        assert len(calendar.functions.ran) == 1
        calendar.clock.jump(-5 * HOUR)
        await calendar.passes(events, schedules, 6 * HOUR)
        assert len(calendar.functions.ran) == 2


@pytest.mark.anyio
async def test_a_tick_waits_while_there_is_no_room(tmp_path: Path) -> None:
    calendar = Calendar(tmp_path, max_events=1)
    async with calendar.living() as (events, schedules):
        with events.room("g", 1):
            await schedules.put("s", "f", "rate(1 minute)", timezone="UTC", event=b"")
            calendar.clock.pass_by(65)
            await until(lambda: schedules.idle)
            assert (calendar.functions.ran, schedules.ticks) == ([], 0)
        await calendar.passes(events, schedules, 10)
        assert calendar.times() == ["22:14:20Z"]


@pytest.mark.anyio
async def test_schedules_can_be_changed_switched_off_and_removed(calendar: Calendar) -> None:
    async with calendar.living() as (events, schedules):
        await schedules.put("s", "f", "rate(1 minute)", timezone="UTC", event=b"")
        await schedules.put("s", "f", "rate(1 hour)", timezone="UTC", event=b"")
        await calendar.passes(events, schedules, 120)
        assert calendar.functions.ran == []
        assert not (await schedules.enable("s", enabled=False)).enabled
        await calendar.passes(events, schedules, 2 * HOUR)
        assert calendar.functions.ran == []
    async with calendar.living() as (events, schedules):
        await schedules.enable("s", enabled=True)
        await calendar.passes(events, schedules, HOUR)
        assert len(calendar.functions.ran) == 1
        await schedules.remove("s")
        for call in (schedules.remove("s"), schedules.enable("s", enabled=True)):
            with pytest.raises(NoSuchSchedule):
                await call
        await calendar.passes(events, schedules, 2 * HOUR)
        assert len(calendar.functions.ran) == 1


@pytest.mark.anyio
async def test_a_schedule_that_is_not_to_be_replaced_stays(calendar: Calendar) -> None:
    async with calendar.living() as (_, schedules):
        first = await schedules.put("f", "f", "rate(1 minute)", timezone="UTC", event=b"", replace=False)
        again = await schedules.put("f", "f", "rate(1 minute)", timezone="UTC", event=b"", replace=False)
        assert again is first
        for other in (
            {"expression": "rate(2 minutes)", "timezone": "UTC", "event": b""},
            {"expression": "rate(1 minute)", "timezone": "Europe/Berlin", "event": b""},
            {"expression": "rate(1 minute)", "timezone": "UTC", "event": b"{}"},
        ):
            with pytest.raises(ScheduleExists, match="--name OTHER"):
                await schedules.put("f", "f", **other, replace=False)  # type: ignore[arg-type]
        assert schedules.all() == [first]


@pytest.mark.anyio
async def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    calendar = Calendar(tmp_path, max_schedules=1)
    calendar.functions.do["g"] = lambda payload: b"1"
    async with calendar.living() as (_, schedules):
        for name, function, expression, event in (
            ("a b", "f", "rate(1 minute)", b""),
            ("s", "f", "never", b""),
            ("s", "f", "cron(0 0 1 1 ? 1999)", b""),
            ("s", "f", "rate(1 minute)", b"{no JSON"),
        ):
            with pytest.raises(errors.BadRequest):
                await schedules.put(name, function, expression, timezone="UTC", event=event)
        with pytest.raises(errors.NoSuchFunction):
            await schedules.put("s", "none", "rate(1 minute)", timezone="UTC", event=b"")
        await schedules.put("s", "f", "rate(1 minute)", timezone="UTC", event=b"")
        with pytest.raises(errors.BadRequest, match="one of f"):
            await schedules.put("s", "g", "rate(1 minute)", timezone="UTC", event=b"")
        with pytest.raises(errors.TooManyRequests):
            await schedules.put("t", "f", "rate(1 minute)", timezone="UTC", event=b"")


@pytest.mark.anyio
async def test_a_removed_function_takes_its_schedules(calendar: Calendar) -> None:
    calendar.functions.do["g"] = lambda payload: b"1"
    async with calendar.living() as (events, schedules):
        await schedules.put("s", "f", "rate(1 minute)", timezone="UTC", event=b"")
        await schedules.put("t", "g", "rate(1 minute)", timezone="UTC", event=b"")
        await events.forget("f")
        schedules.forget("f")
        assert [each.name for each in schedules.all()] == ["t"]
    del calendar.functions.do["g"]  # by a daemon that was killed right after
    async with calendar.living() as (events, schedules):
        assert [each.name for each in schedules.all()] == ["t"]
        await calendar.passes(events, schedules, 120)
        assert schedules.all() == []
        assert calendar.functions.ran == []


@pytest.mark.anyio
async def test_an_alias_that_is_removed_takes_its_schedules_and_no_others(calendar: Calendar) -> None:
    async with calendar.living() as (events, schedules):
        for name, qualifier in (("s", "prod"), ("t", "1"), ("u", "")):
            await schedules.put(name, "f", "rate(1 minute)", timezone="UTC", event=b"", qualifier=qualifier)
        await events.forget_qualifier("f", "prod")
        schedules.forget("f", "prod")
        assert [each.name for each in schedules.all()] == ["t", "u"]
    async with calendar.living() as (events, schedules):
        assert [each.name for each in schedules.all()] == ["t", "u"]
