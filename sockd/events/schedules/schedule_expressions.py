"""When a schedule ticks: rate(...), AWS's cron(...), or the five fields of cron(8).

    rate(5 minutes)            every so often, from the moment it was made; second, minute, hour, day
    cron(0 9 ? * MON-FRI *)    AWS's: minute, hour, day, month, weekday (1 is Sunday), year
    0 9 * * 1-5                cron's: minute, hour, day, month, weekday (0 and 7 are Sunday)

Pure. Fields are judged and walked by cronsim, which does as Debian's cron where clocks change: a fixed time that a day
does not have comes right after the gap, one that a day has twice comes once; what names no fixed time just goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Protocol
from zoneinfo import ZoneInfo

from sockd.base.errors import BadRequest
from sockd.base.extras import installing

_RATE = re.compile(r"rate\(\s*([0-9]{1,6})\s+(second|minute|hour|day)s?\s*\)")
_CRON = re.compile(r"cron\((.*)\)")
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_YEARS = range(1970, 2200)
_WEEKDAY = re.compile(r"(?<![#/0-9])[1-7](?![0-9])")


class BadSchedule(BadRequest):
    """An expression or a time zone that means nothing, or never a moment."""


class Expression(Protocol):
    """When."""

    is_fixed: bool
    """Whether it names times of the day, which a clock that is set back a little does not bring again."""

    def after(self, moment: float, *, since: float) -> float:
        """The first tick after a moment; 0: there is none.

        Args: since: when the schedule was made; both are Unix time."""


class Rate:
    """Every so many seconds."""

    is_fixed = False

    def __init__(self, period_s: int) -> None:
        self._period_s = period_s

    def after(self, moment: float, *, since: float) -> float:
        since = min(since, moment)  # the clock may have been set back meanwhile
        passed = (moment - since) // self._period_s
        return since + (passed + 1) * self._period_s


class Cron:
    """By the calendar of a time zone."""

    def __init__(self, fields: str, zone: ZoneInfo, years: frozenset[int] | None = None) -> None:
        """Args: fields: five. Raises: BadSchedule."""
        self._fields = fields
        self._zone = zone
        self._years = years
        minute, hour, *_ = fields.split()
        self.is_fixed = not minute.startswith("*") and not hour.startswith("*")
        self._from(datetime.now(zone))

    def after(self, moment: float, *, since: float) -> float:
        start = datetime.fromtimestamp(moment, self._zone)
        while True:
            if self._years is not None and start.year not in self._years:
                later = [year for year in self._years if year > start.year]
                if not later:
                    return 0.0
                # A second before that year, as ticks are after a moment.
                start = datetime.fromtimestamp(
                    datetime(min(later), 1, 1, tzinfo=self._zone).timestamp() - 1, self._zone
                )
            found = self._walk(start)
            if found is None or self._years is None or found.year in self._years:
                return found.timestamp() if found is not None else 0.0
            start = found

    def _walk(self, start: datetime) -> datetime | None:
        return next(self._from(start), None)

    def _from(self, start: datetime) -> Iterator[datetime]:
        try:
            from cronsim import CronSim, CronSimError
        except ImportError:
            raise BadSchedule(f"cron expressions need cronsim: {installing('schedules')}") from None
        try:
            return iter(CronSim(self._fields, start))
        except CronSimError as error:
            raise BadSchedule(f"{self._fields!r}: {error}") from None


def parse(text: str, timezone: str = "UTC") -> Expression:
    """Raises: BadSchedule."""
    text = text.strip()
    rate = _RATE.fullmatch(text)
    if rate:
        period_s = int(rate[1]) * _SECONDS[rate[2]]
        if not period_s:
            raise BadSchedule("a rate of 0 is none")
        return Rate(period_s)
    zone = _zone(timezone)
    cron = _CRON.fullmatch(text)
    if cron:
        return _aws_cron(cron[1], zone)
    if len(text.split()) != 5:
        raise BadSchedule(
            f"{text[:80]!r} is no schedule: say rate(5 minutes), cron(0 9 ? * MON-FRI *) as AWS does, or five fields as cron does"
        )
    return Cron(text, zone)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        raise BadSchedule(f"no time zone {name[:80]!r}; one is Europe/Berlin, another UTC") from None


def _aws_cron(text: str, zone: ZoneInfo) -> Cron:
    """AWS's six fields as cron's five, and the years."""
    fields = text.upper().split()
    if len(fields) != 6:
        raise BadSchedule("cron(...) has six fields: minute, hour, day, month, weekday, year")
    minute, hour, day, month, weekday, year = fields
    if (day == "?") == (weekday == "?"):
        raise BadSchedule("cron(...) says either the day or the weekday, and ? for the other one")
    if "W" in day and day != "LW":
        raise BadSchedule("W, the nearest weekday, is not offered; LW, the month's last one, is")
    weekday = {"?": "*", "L": "6"}.get(weekday) or _WEEKDAY.sub(lambda found: str(int(found[0]) - 1), weekday)
    return Cron(" ".join((minute, hour, day.replace("?", "*"), month, weekday)), zone, _years(year))


def _years(text: str) -> frozenset[int] | None:
    if text == "*":
        return None
    years: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"(\*|[0-9]{4})(?:-([0-9]{4}))?(?:/([0-9]{1,3}))?", part)
        if not found:
            raise BadSchedule(f"{text!r} is no year: 2030, 2030-2035, 2030/2 or *")
        first = _YEARS.start if found[1] == "*" else int(found[1])
        last = int(found[2] or (_YEARS.stop - 1 if found[3] else first))
        years.update(range(max(first, _YEARS.start), min(last, _YEARS.stop - 1) + 1, int(found[3] or 1) or 1))
    if not years:
        raise BadSchedule(f"{text!r}: years are from {_YEARS.start} to {_YEARS.stop - 1}")
    return frozenset(years)


def as_aws(moment: float) -> str:
    """A moment as EventBridge writes it."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
