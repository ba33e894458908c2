"""Schedules: functions that run by the clock. Each tick puts an event into the store, which is run like any other.

Owns the timer. A tick's event and the moment of the next tick are written in one transaction, if no other worker has ticked: a
daemon that is killed has done both or neither, so no tick is lost and none comes twice.

    POLICY: of the ticks that were missed (the daemon was down, the clock was set forward, the queue was full) one is
    made up for, or none (`events.missed`). A clock that is set back brings fixed times again only if it was set back by
    more than three hours, as with cron; what repeats by the minute goes on by the new time at once.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from sockd.base.blocking import in_thread
from sockd.base.errors import (
    BadRequest,
    DatabaseUnavailable,
    NoCapacity,
    NoSuchFunction,
    SockdError,
    TooManyRequests,
)
from sockd.events.event import SCHEDULE, Event
from sockd.events.events import Events
from sockd.events.schedules.schedule_events import check_event, event_of
from sockd.events.schedules.schedule_expressions import parse
from sockd.events.schedules.schedule_table import Schedule

AGAIN_S = 10.0
"""After a tick that could not be written."""
LATE_S = 60.0
"""From then on a tick counts as missed."""
SET_BACK_S = 3 * 3600.0
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
EXPRESSION_CHARS = 256
TIMEZONE_CHARS = 50

_log = logging.getLogger(__name__)


class NoSuchSchedule(SockdError):
    """No schedule has this name."""

    status = 404
    error_type = "ResourceNotFoundException"


def missing_schedule(name: str) -> NoSuchSchedule:
    """The error for a name that no schedule has."""
    return NoSuchSchedule(f"no schedule {name[:80]!r}; `sockd schedule ls` lists them")


class ScheduleExists(SockdError):
    """There is another schedule of this name, and its replacement was not asked for."""

    status = 409
    error_type = "ResourceConflictException"


class Alarm(Protocol):
    """A timer on the wall clock (`sockd.linux.wall_clock`)."""

    def set(self, at: float | None) -> None: ...
    def close(self) -> None: ...


class _Tick(NamedTuple):
    """The arguments of `EventBackend.tick`."""

    old: Schedule
    ticked: Schedule
    event: Event | None
    payload: bytes


class Schedules:
    """`start` when events run; `aclose` before they are closed."""

    def __init__(
        self,
        events: Events,
        rows: Sequence[Schedule],
        check: Callable[[str, str], object],
        stored: Callable[[str], Awaitable[Schedule | None]] | None = None,
    ) -> None:
        """Args:
        rows: those in the store;
        check: whether there is a function, raises NoSuchFunction;
        stored: reads one of the store, where other workers tick and change it, too; None: no other does."""
        self._events = events
        self._check = check
        self._stored = stored
        self._schedules = {row.name: row for row in rows}
        self._alarm: Alarm | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._to_correct = True
        """The clock may have been set since all moments were judged."""
        self._held_until = 0.0
        """After a tick that could not be written, on the wall clock."""
        self._unsure: dict[str, _Tick] = {}
        """By schedule: writing them has failed, but may have been done; they are written again as they are."""
        self.ticks = 0
        """Since the daemon started."""

    def start(self, alarm: Callable[[Callable[[bool], None]], Alarm]) -> None:
        """Tick from now on. Args: alarm: makes a timer that calls back when it is time and when the clock was set."""
        self._alarm = alarm(self._woken)
        self._woken()

    def stop(self) -> None:
        """Begin no tick any more."""
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None

    async def aclose(self) -> None:
        """Tick no more. Safe to call twice."""
        self.stop()
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)

    @property
    def idle(self) -> bool:
        """Whether no tick is being made."""
        return self._ticking is None

    # -- what there is

    def all(self) -> list[Schedule]:
        """By name."""
        return [self._schedules[name] for name in sorted(self._schedules)]

    def find(self, name: str) -> Schedule | None:
        """Return the one of this name, if there is one."""
        return self._schedules.get(name)

    def get(self, name: str) -> Schedule:
        """Raises: NoSuchSchedule."""
        if name not in self._schedules:
            raise missing_schedule(name)
        return self._schedules[name]

    async def put(
        self,
        name: str,
        function: str,
        expression: str,
        *,
        timezone: str,
        event: bytes,
        qualifier: str = "",
        replace: bool = True,
    ) -> Schedule:
        """Make a schedule, or give one of the same function another time or event.

        Args: event: JSON, or nothing; qualifier: a version or an alias; replace: False: only make one, or find the very same.
        Raises: BadRequest, NoSuchFunction, ScheduleExists, TooManyRequests."""
        self._check(function, qualifier)
        if len(expression) > EXPRESSION_CHARS or len(timezone) > TIMEZONE_CHARS:
            raise BadRequest(f"an expression has at most {EXPRESSION_CHARS} characters, a time zone {TIMEZONE_CHARS}")
        old = self._schedules.get(name)
        if not NAME.fullmatch(name):
            raise BadRequest("a schedule's name is 1 to 64 of A-Z a-z 0-9 _ . -")
        if old is not None and old.function != function:
            raise BadRequest(f"the schedule {name} is one of {old.function}: choose another name, or remove it first")
        if old is not None and not replace:
            return _same(old, qualifier=qualifier, expression=expression, timezone=timezone, event=event)
        if old is None and len(self._schedules) >= self._events.config.max_schedules:
            raise TooManyRequests(f"there are {len(self._schedules)} schedules, which are events.max_schedules")
        check_event(event, self._events.config.max_payload_bytes)
        now = self._events.clock.now()
        when = parse(expression, timezone)
        next_at = await in_thread(when.after, now, since=now)
        if not next_at:
            raise BadRequest(f"{expression!r} will never come again")
        schedule = Schedule(
            name=name,
            function=function,
            qualifier=qualifier,
            expression=expression,
            timezone=timezone,
            event=event,
            created_at=now,
            next_at=next_at,
        )
        await self._keep(schedule)
        return schedule

    async def enable(self, name: str, *, enabled: bool) -> Schedule:
        """Enable or disable a schedule. Raises: NoSuchSchedule."""
        old, now = self.get(name), self._events.clock.now()
        if old.enabled == enabled:
            return old
        next_at = await in_thread(parse(old.expression, old.timezone).after, now, since=old.created_at)
        schedule = msgspec.structs.replace(old, enabled=enabled, next_at=next_at if enabled else 0.0)
        await self._keep(schedule)
        return schedule

    async def remove(self, name: str) -> None:
        """Raises: NoSuchSchedule."""
        self.get(name)
        await self._events.backend.remove_schedule(name)
        self._schedules.pop(name, None)
        self._woken()

    def forget(self, function: str, qualifier: str | None = None) -> None:
        """A function has been removed, or a version or an alias of it, and its rows with it."""
        self._schedules = {
            name: each
            for name, each in self._schedules.items()
            if each.function != function or qualifier not in (None, each.qualifier)
        }
        self._woken()

    def follow(self, rows: Sequence[Schedule]) -> None:
        """Take the schedules that are in the store now: another worker has changed some."""
        self._schedules = {row.name: row for row in rows}
        self._woken()

    async def _keep(self, schedule: Schedule) -> None:
        await self._events.backend.put_schedule(schedule)
        self._schedules[schedule.name] = schedule
        self._woken()

    # -- ticking

    def _woken(self, was_set: bool = False) -> None:
        """Handle the alarm: a tick may be due, or the clock was set."""
        self._to_correct |= was_set
        if self._alarm is not None and self._ticking is None:
            self._ticking = asyncio.ensure_future(self._tick_all())
            self._ticking.add_done_callback(self._ticked)

    def _ticked(self, task: asyncio.Task[None]) -> None:
        self._ticking = None
        if not task.cancelled() and task.exception() is not None:
            _log.error("schedules", exc_info=task.exception())
            self._held_until = self._events.clock.now() + AGAIN_S
        if self._alarm is not None:
            coming = [each.next_at for each in self._schedules.values() if each.enabled and each.next_at]
            self._alarm.set(max(min(coming), self._held_until) if coming else None)

    async def _tick_all(self) -> None:
        now = self._events.clock.now()
        to_correct, self._to_correct = self._to_correct, False
        if to_correct:
            self._held_until = 0.0
        for schedule in list(self._schedules.values()):
            if not schedule.enabled or self._held_until > now:
                continue
            if schedule.next_at and schedule.next_at <= now:
                await self._tick(schedule, now)
            elif to_correct:
                await self._correct(schedule, now)

    async def _tick(self, schedule: Schedule, now: float) -> None:
        """One tick: the event, and the next moment."""
        try:
            self._check(schedule.function, schedule.qualifier)
        except NoSuchFunction:
            await self._without_function(schedule, now)
            return
        unsure = tick = self._unsure.pop(schedule.name, None)
        try:
            with self._events.room(schedule.function, len(event_of(schedule))):
                if tick is None or tick.old is not schedule:
                    tick = await self._made(schedule, now)
                has_ticked = await self._events.backend.tick(*tick)
        except (TooManyRequests, NoCapacity) as error:
            _log.warning("schedule %s waits: %s", schedule.name, error)
            self._held_until = now + AGAIN_S
            if tick is not None and (tick is unsure or isinstance(error, DatabaseUnavailable)):
                self._unsure[schedule.name] = tick
            return
        is_current = self._schedules.get(schedule.name) is schedule
        if not has_ticked:  # it is being changed, or another worker has ticked
            if is_current:
                await self._read_again(schedule, now)
            return
        if is_current:
            self._schedules[schedule.name] = tick.ticked
        if tick.event is not None:
            self.ticks += 1
            self._events.added(tick.event)

    async def _without_function(self, schedule: Schedule, now: float) -> None:
        """Remove a schedule, as the daemon was killed between removing its function and this. Another worker may have the
        function, and tick: then it is only looked at later, and by its moment in the store."""
        if self._stored is not None:
            self._schedules[schedule.name] = msgspec.structs.replace(schedule, next_at=now + AGAIN_S)
            return
        _log.warning("schedule %s is removed: there is no function %s", schedule.name, schedule.function)
        await self.remove(schedule.name)

    async def _read_again(self, schedule: Schedule, now: float) -> None:
        try:
            stored = await self._stored(schedule.name) if self._stored is not None else schedule
        except DatabaseUnavailable as error:
            _log.warning("schedule %s waits: %s", schedule.name, error)
            stored = schedule
        if stored is schedule:
            self._held_until = now + AGAIN_S
        if self._schedules.get(schedule.name) is not schedule:
            return
        if stored is None:
            del self._schedules[schedule.name]
        else:
            self._schedules[schedule.name] = stored

    async def _made(self, schedule: Schedule, now: float) -> _Tick:
        payload = event_of(schedule)
        event = Event(
            *(0, uuid.uuid4().bytes, schedule.function, schedule.qualifier, f"{SCHEDULE}{schedule.name}", 0),
            *(now, now, 0, 0, 0, len(payload)),
        )
        is_missed = now - schedule.next_at > LATE_S and self._events.config.missed == "skip"
        following = await in_thread(parse(schedule.expression, schedule.timezone).after, now, since=schedule.created_at)
        ticked = msgspec.structs.replace(schedule, next_at=following, last_at=schedule.next_at)
        return _Tick(schedule, ticked, None if is_missed else event, payload)

    async def _correct(self, schedule: Schedule, now: float) -> None:
        """See that a clock that was set back holds nothing up."""
        when = parse(schedule.expression, schedule.timezone)
        is_done = when.is_fixed and now < schedule.last_at < now + SET_BACK_S
        start = schedule.last_at if is_done else now
        next_at = await in_thread(when.after, start, since=schedule.created_at)
        if next_at and next_at < schedule.next_at and self._schedules.get(schedule.name) is schedule:
            sooner = msgspec.structs.replace(schedule, next_at=next_at)
            has_changed = await self._events.backend.tick(schedule, sooner, None, b"")
            if has_changed and self._schedules.get(schedule.name) is schedule:
                self._schedules[schedule.name] = sooner


def _same(old: Schedule, **wanted: object) -> Schedule:
    """The schedule that is there, if it is as wanted. Raises: ScheduleExists."""
    if any(getattr(old, key) != value for key, value in wanted.items()):
        raise ScheduleExists(
            f"{old.function} has a schedule of this name already, {old.expression}: give the new one a name of its own "
            f"(--name OTHER), or change this one (--name {old.name})"
        )
    return old
