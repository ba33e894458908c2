"""Routes of the management API for schedules.

    GET    /schedules
    PUT    /schedules/{schedule}     {"function", "qualifier", "expression", "timezone", "event", "replace"}
    PATCH  /schedules/{schedule}     {"enabled": true}
    DELETE /schedules/{schedule}

Owns nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sockd.events.schedules.schedule_table import Schedule
from sockd.events.schedules.schedules import ScheduleExists, Schedules, missing_schedule
from sockd.http.management.narrowing import check_function, sees
from sockd.http.management.typed_routes import respond, typed_routes
from sockd.http.server.messages.answers import json_answer
from sockd.http.uploads import read_json


class ScheduleBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a PUT."""

    function: str
    expression: str
    qualifier: str = ""
    """A version or an alias."""
    timezone: str = "UTC"
    event: msgspec.Raw = msgspec.Raw()
    """JSON, the `detail` of the events."""
    replace: bool = True
    """False: a schedule of this name that is not as wanted stays as it is, and the answer is 409."""


class Switch(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a PATCH."""

    enabled: bool


def routes(schedules: Schedules, max_body_bytes: int) -> list[Route]:
    """The routes, for `Management`. Args: max_body_bytes: of a schedule and its event."""

    def seen(request: Request) -> str:
        """The name in the path. Raises: NoSuchSchedule: there is none that the key may see."""
        name: str = request.path_params["schedule"]
        if not sees(request, schedules.get(name).function):
            raise missing_schedule(name)
        return name

    async def show_all(request: Request) -> Response:
        return respond(json_answer([described(each) for each in schedules.all() if sees(request, each.function)]))

    async def put(request: Request) -> Response:
        wanted = await read_json(request, ScheduleBody, max_body_bytes, "not a schedule: {error}")
        check_function(request, wanted.function)
        name = request.path_params["schedule"]
        old = schedules.find(name)
        if old is not None and not sees(request, old.function):
            raise ScheduleExists(f"the schedule {name} is one of another function: choose another name")
        event, timezone = bytes(wanted.event), wanted.timezone
        made = await schedules.put(
            *(name, wanted.function, wanted.expression),
            timezone=timezone,
            event=event,
            qualifier=wanted.qualifier,
            replace=wanted.replace,
        )
        return respond(json_answer(described(made)))

    async def switch(request: Request) -> Response:
        refused = 'send {{"enabled": true}} or {{"enabled": false}}'
        wanted = await read_json(request, Switch, max_body_bytes, refused)
        return respond(json_answer(described(await schedules.enable(seen(request), enabled=wanted.enabled))))

    async def remove(request: Request) -> Response:
        name = seen(request)
        await schedules.remove(name)
        return respond(json_answer({"removed": name}))

    return typed_routes(
        [
            ("GET", "/schedules", show_all),
            ("PUT", "/schedules/{schedule}", put),
            ("PATCH", "/schedules/{schedule}", switch),
            ("DELETE", "/schedules/{schedule}", remove),
        ]
    )


def described(schedule: Schedule) -> dict[str, Any]:
    """A schedule, JSON-able."""
    return {**msgspec.structs.asdict(schedule), "event": msgspec.Raw(schedule.event or b"{}")}
