"""Routes of the management API for asynchronous invocation.

    GET    /events?state=&function=&limit=     events that wait, dead letters, or both
    GET    /events/{id}                        one of them with its payload
    POST   /events/{id}/retry                  run it again;    POST /events/retry?function=    all of them
    DELETE /events/{id}                        delete it;       DELETE /events?function=        all of them
    GET    /functions/{name}/event-invoke-config?qualifier=
    PUT    /functions/{name}/event-invoke-config?qualifier=   {"max_retries", "max_age_s", "on_success", "on_failure"}
    DELETE /functions/{name}/event-invoke-config?qualifier=

Owns nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sockd.base.errors import BadRequest, KeyNotEnough
from sockd.events.dead_letters import missing_event
from sockd.events.destinations import FunctionDestination, parse_destination
from sockd.events.event_configs import EventInvokeConfig
from sockd.events.events import Events
from sockd.http.access.keys import Key
from sockd.http.management.keyed import key_of
from sockd.http.management.narrowing import functions_of, sees, wanted
from sockd.http.management.typed_routes import function_name, limit, respond, typed_routes
from sockd.http.server.messages.answers import json_answer
from sockd.http.uploads import read_json

MAX_BODY_BYTES = 64 * 1024
STATES = ("all", "waiting", "dead")


class EventConfigBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a PUT of an event-invoke-config."""

    max_retries: int | None = None
    max_age_s: int | None = None
    on_success: str = ""
    on_failure: str = ""


def routes(events: Events) -> list[Route]:
    """The routes, for `Management`."""

    async def show_all(request: Request) -> Response:
        query = request.query_params
        state, most = query.get("state", "all"), limit(query.get("limit", "100"))
        if state not in STATES:
            raise BadRequest(f"state is one of {', '.join(STATES)}")
        found: list[dict[str, Any]] = []
        functions = wanted(request, query.get("function"))
        if state != "dead":
            found += [each for function in functions for each in events.waiting(function, most)][:most]
        if state != "waiting":
            letters = [each for function in functions for each in await events.dead_letters.last(function, most)]
            found += (
                sorted(letters, key=lambda each: each["died_at"], reverse=True)[:most] if functions[1:] else letters
            )
        return respond(json_answer(found))

    async def one(request: Request) -> dict[str, Any]:
        """The event of the path. Raises: NoSuchEvent, also for one of a function that the key is not for."""
        event_id = request.path_params["id"]
        found = await events.show(event_id)
        if not sees(request, found["function"]):
            raise missing_event(event_id)
        return found

    async def each_of(request: Request, act: Callable[[str | None, str | None], Awaitable[int]]) -> int:
        """Do something with the dead letter of the path, or with all of the wanted functions. Returns how many."""
        function, event_id = request.query_params.get("function"), request.path_params.get("id")
        if event_id is None:
            return sum([await act(each, None) for each in wanted(request, function)])
        if functions_of(request):
            await one(request)
        return await act(function, event_id)

    async def show(request: Request) -> Response:
        return respond(json_answer(await one(request)))

    async def retry(request: Request) -> Response:
        return respond(json_answer({"retried": await each_of(request, events.dead_letters.retry)}))

    async def delete(request: Request) -> Response:
        return respond(json_answer({"deleted": await each_of(request, events.dead_letters.discard)}))

    async def show_config(request: Request) -> Response:
        name = function_name(request)
        return respond(json_answer([_described(config) for config in events.invoke_configs.all_of(name)]))

    async def put_config(request: Request) -> Response:
        given = await read_json(request, EventConfigBody, MAX_BODY_BYTES, "not an event-invoke-config: {error}")
        config = EventInvokeConfig(
            function=function_name(request), qualifier=_qualifier(request), **msgspec.structs.asdict(given)
        )
        if (key := key_of(request)) is not None:
            _check_destinations(key, config, events.invoke_configs.get(config.function, config.qualifier))
        return respond(json_answer(_described(await events.invoke_configs.put(config))))

    async def remove_config(request: Request) -> Response:
        removed = await events.invoke_configs.remove(function_name(request), _qualifier(request))
        return respond(json_answer({"removed": removed}))

    config_path = "/functions/{name}/event-invoke-config"
    return typed_routes(
        [
            ("GET", "/events", show_all),
            ("DELETE", "/events", delete),
            ("POST", "/events/retry", retry),
            ("GET", "/events/{id}", show),
            ("DELETE", "/events/{id}", delete),
            ("POST", "/events/{id}/retry", retry),
            ("GET", config_path, show_config),
            ("PUT", config_path, put_config),
            ("DELETE", config_path, remove_config),
        ]
    )


def _check_destinations(key: Key, wanted: EventInvokeConfig, old: EventInvokeConfig | None) -> None:
    """Check that a key may invoke the functions that it makes destinations: their events are its doing. A destination that is
    there already stays the doing of the client that has set it. Raises: KeyNotEnough, BadRequest."""
    sides = [(wanted.on_success, old.on_success if old else ""), (wanted.on_failure, old.on_failure if old else "")]
    for text in (new for new, former in sides if new and new != former):
        destination = parse_destination(text)
        if isinstance(destination, FunctionDestination):
            try:
                key.check("invoke", destination.name)
            except KeyNotEnough as error:
                raise KeyNotEnough(f"the destination {text[:200]!r}: {error.message}") from None


def _qualifier(request: Request) -> str:
    return request.query_params.get("qualifier", "") or "$LATEST"


def _described(config: EventInvokeConfig) -> dict[str, Any]:
    return msgspec.structs.asdict(config)
