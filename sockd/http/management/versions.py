"""Routes of the management API for versions.

    GET    /functions/{name}/versions                     what was published, aliases, the last deploys
    POST   /functions/{name}/versions                     {"description": "..."}: publish what was deployed last
    DELETE /functions/{name}/versions/{number}
    PUT    /functions/{name}/aliases/{alias}              {"version": "3", "canary": {"4": 0.1}, "guard": {...}}: the guard
                                                          withdraws or promotes the canary by its errors
    DELETE /functions/{name}/aliases/{alias}
    PUT    /functions/{name}/provisioned/{qualifier}      {"wanted": 2}: keep so many initialized; 0: none
    POST   /functions/{name}/rollback                     {"version": 3}; without one: to the deploy before

Owns nothing.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sockd.base.errors import BadRequest, NoSuchVersion
from sockd.functions.deploys.canaries import WINDOW
from sockd.functions.registry.aliases import Alias, Guard, number_of
from sockd.http.management.typed_routes import function_name, respond, typed_routes
from sockd.http.server.messages.answers import json_answer
from sockd.http.uploads import read_json
from sockd.http.version_rows import alias_row, described, provision_row, ran, version_row
from sockd.http.worker import Worker

MAX_BODY_BYTES = 16 * 1024
MOST_HOLD_S = 30 * 86400.0


class Publish(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST of a version."""

    description: str | None = None


class Lead(msgspec.Struct, forbid_unknown_fields=True):
    """Where an alias is to lead."""

    version: str
    canary: dict[str, float] = {}
    """At most one version, and its share."""
    description: str = ""
    guard: GuardShape | None = None


class GuardShape(msgspec.Struct, forbid_unknown_fields=True):
    """What decides about the canary of an alias, as `Guard`."""

    most_errors: Annotated[float, msgspec.Meta(ge=0, lt=1)]
    least_requests: Annotated[int, msgspec.Meta(ge=1, le=WINDOW)] = 20
    hold_s: Annotated[float, msgspec.Meta(ge=0, le=MOST_HOLD_S)] = 600.0


class Keep(msgspec.Struct, forbid_unknown_fields=True):
    """How many sandboxes are to be kept initialized."""

    wanted: int


class Back(msgspec.Struct, forbid_unknown_fields=True):
    """Where to go back to."""

    version: int | None = None


S = TypeVar("S", bound=msgspec.Struct)


def routes(worker: Worker) -> list[Route]:
    """The routes, for `Management`."""
    versions = worker.versions

    async def show(request: Request) -> Response:
        return respond(json_answer(described(versions, function_name(request))))

    async def publish(request: Request) -> Response:
        name, wanted = function_name(request), await _parsed(request, Publish)
        return respond(json_answer(version_row(await versions.publish(name, wanted.description))))

    async def delete(request: Request) -> Response:
        name, word = function_name(request), request.path_params["number"]
        number = number_of(word)
        if number is None:
            raise NoSuchVersion(name, word)
        versions.get(name, word)
        await worker.functions.delete_version(name, number)
        return respond(json_answer({"deleted": number}))

    async def lead(request: Request) -> Response:
        name, wanted = function_name(request), await _parsed(request, Lead)
        if len(wanted.canary) > 1:
            raise BadRequest("an alias leads to two versions at most: canary has more than one")
        other, weight = next(iter(wanted.canary.items()), ("", 0.0))
        alias = Alias(name, request.path_params["alias"], wanted.version, other, weight, wanted.description)
        if (guard := wanted.guard) is not None:
            guarded = Guard(guard.most_errors, guard.least_requests, guard.hold_s, time.time())
            alias = replace(alias, guard=guarded)
        return respond(json_answer(alias_row(versions, await versions.put_alias(alias))))

    async def forget(request: Request) -> Response:
        name, alias = function_name(request), request.path_params["alias"]
        versions.alias(name, alias)
        await worker.functions.delete_alias(name, alias)
        return respond(json_answer({"deleted": alias}))

    async def provision(request: Request) -> Response:
        name, wanted = function_name(request), (await _parsed(request, Keep)).wanted
        qualifier, provisioning = request.path_params["qualifier"], versions.provisioning
        if wanted > 0:
            return respond(json_answer(provision_row(await provisioning.put(name, qualifier, wanted))))
        await provisioning.delete(name, qualifier)
        return respond(json_answer({"qualifier": qualifier, "wanted": 0}))

    async def rollback(request: Request) -> Response:
        name, wanted = function_name(request), await _parsed(request, Back)
        record = await versions.rollback(name, wanted.version)
        return respond(json_answer({"name": name, "deploy": record.version, "digest": ran(record)}))

    return typed_routes(
        [
            ("GET", "/functions/{name}/versions", show),
            ("POST", "/functions/{name}/versions", publish),
            ("DELETE", "/functions/{name}/versions/{number}", delete),
            ("PUT", "/functions/{name}/aliases/{alias}", lead),
            ("DELETE", "/functions/{name}/aliases/{alias}", forget),
            ("PUT", "/functions/{name}/provisioned/{qualifier}", provision),
            ("POST", "/functions/{name}/rollback", rollback),
        ]
    )


async def _parsed(request: Request, shape: type[S]) -> S:
    """A body. Raises: BadRequest."""
    return await read_json(request, shape, MAX_BODY_BYTES, "the body is not valid: {error}")
