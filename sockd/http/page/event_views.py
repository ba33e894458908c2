"""Events, dead letters and schedules as the values of templates.

Pure but for reading the sources. Bounded: a page has so many rows, and so many characters of a payload.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from sockd.base.spelling import size, span
from sockd.events.schedules.schedule_table import Schedule
from sockd.http.page import words
from sockd.http.page.sources import PageSources
from sockd.http.page.views import Values

MAX_EVENTS = 100
MAX_SCHEDULES = 200
MAX_PAYLOAD_CHARS = 64 << 10


def events(sources: PageSources) -> Values:
    """The live panel of `/`: the queue in numbers."""
    counts = sources.counts()
    oldest = f", the oldest for {span(counts.oldest_age_s)}" if counts.waiting else ""
    return {
        "waiting": f"{words.many(counts.waiting, 'event')} waiting{oldest}",
        "running": f"{words.grouped(counts.running)} running",
        "dead": words.many(counts.dead, "dead letter"),
        "has_dead": bool(counts.dead),
        "schedules": words.many(counts.schedules, "schedule"),
    }


async def queue_page(sources: PageSources, function: str | None) -> Values:
    """Events that wait or run, dead letters and schedules, of one function or of all."""
    waiting = sources.waiting(function, MAX_EVENTS)
    dead = await sources.dead_letters(function, MAX_EVENTS)
    schedules = sources.schedules(function)
    return {
        "function": function,
        "most": MAX_EVENTS,
        "waiting": [event_row(each) for each in waiting],
        "dead": [event_row(each) for each in dead],
        "schedules": [schedule_row(each) for each in schedules[:MAX_SCHEDULES]],
        "hidden": len(schedules) - MAX_SCHEDULES if len(schedules) > MAX_SCHEDULES else 0,
    }


def event_row(event: Mapping[str, Any]) -> Values:
    """One event, or one dead letter."""
    return {
        "id": event["id"],
        "function": event["function"],
        "qualifier": event["qualifier"],
        "source": event["source"],
        "state": event["state"],
        "is_dead": event["state"] == "dead",
        "accepted": words.day(event["accepted_at"]),
        "stamp": words.stamp(event["accepted_at"]),
        "attempts": words.grouped(event["attempts"]),
        "size": size(event["payload_bytes"]),
        "died": words.day(event["died_at"]) if "died_at" in event else "",
        "reason": event.get("reason", ""),
        "error_type": event.get("error_type", ""),
        "error": event.get("error", "")[:200],
        "retry_token": "",
    }


def event_page(event: Mapping[str, Any]) -> Values:
    """One event with its payload, and the traceback of a dead letter."""
    stack = "\n".join(event.get("stack", ()))
    message = ": ".join(filter(None, (event.get("error_type", ""), event.get("error", ""))))
    return {
        **event_row(event),
        "failure": f"{message}\n\n{stack}" if stack else message,
        "payload": payload_text(event["payload"]),
    }


def payload_text(payload: object) -> str:
    """An event's payload as it is stored: JSON, or other text."""
    text = bytes(payload).decode("utf-8", "replace") if isinstance(payload, msgspec.Raw) else str(payload or "")
    return f"{text[:MAX_PAYLOAD_CHARS]}\n…" if len(text) > MAX_PAYLOAD_CHARS else text


def schedule_row(schedule: Schedule) -> Values:
    """One schedule; its moments are in the worker's time zone, its expression in the schedule's."""
    return {
        "name": schedule.name,
        "function": schedule.function,
        "qualifier": schedule.qualifier,
        "expression": schedule.expression,
        "timezone": schedule.timezone,
        "next": next_words(schedule),
        "last": words.day(schedule.last_at) if schedule.last_at else words.NOTHING,
    }


def next_words(schedule: Schedule) -> str:
    """When a schedule makes its next event."""
    if not schedule.enabled:
        return "switched off"
    if not schedule.next_at:
        return "never again"
    return f"{words.day(schedule.next_at)} {time.strftime('%Z', time.localtime(schedule.next_at))}"
