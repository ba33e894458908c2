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
from dataclasses import asdict, replace
from typing import Annotated, Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sockd.base.errors import BadRequest, NoSuchVersion
from sockd.functions.deploys.canaries import WINDOW
from sockd.functions.provisioning import Status
from sockd.functions.registry.aliases import Alias, Guard, number_of
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.versions import Described, Versions
from sockd.http.management.typed_routes import function_name, respond, typed_routes
from sockd.http.management.uploads import read_json
from sockd.http.run.worker_api import VersionsApi
from sockd.http.server.answers import json_answer

MAX_BODY_BYTES = 16 * 1024
MOST_HOLD_S = 30 * 86400.0
LISTED = 100
"""How many of the newest published versions are shown."""


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


def routes(worker: VersionsApi) -> list[Route]:
    """The routes, for `Management`."""
    versions = worker.versions

    async def show(request: Request) -> Response:
        return respond(json_answer(described(versions, function_name(request))))

    async def publish(request: Request) -> Response:
        name, wanted = function_name(request), await _parsed(request, Publish)
        return respond(json_answer(_version(versions.publish(name, wanted.description))))

    async def delete(request: Request) -> Response:
        name, word = function_name(request), request.path_params["number"]
        number = number_of(word)
        if number is None:
            raise NoSuchVersion(name, word)
        versions.get(name, word)
        await worker.delete_version(name, number)
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
        return respond(json_answer(_alias(versions, versions.put_alias(alias))))

    async def forget(request: Request) -> Response:
        name, alias = function_name(request), request.path_params["alias"]
        versions.alias(name, alias)
        await worker.delete_alias(name, alias)
        return respond(json_answer({"deleted": alias}))

    async def provision(request: Request) -> Response:
        name, wanted = function_name(request), (await _parsed(request, Keep)).wanted
        qualifier, provisioning = request.path_params["qualifier"], versions.provisioning
        if wanted > 0:
            return respond(json_answer(_provision(await provisioning.put(name, qualifier, wanted))))
        provisioning.delete(name, qualifier)
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


def described(versions: Versions, name: str) -> dict[str, Any]:
    """All that there is of a function. Raises: NoSuchFunction."""
    published = [versions.described(name, each) for each in versions.list(name)[-LISTED:] if each is not None]
    return {
        "name": name,
        "latest": versions.get(name).record.version,
        "versions": [_version(each) for each in published],
        "aliases": [_alias(versions, each) for each in versions.aliases(name)],
        "provisioned": [_provision(each) for each in versions.provisioning.list(name)],
        "deploys": [deploy_of(each) for each in versions.deploys(name)],
    }


def deploy_of(record: FunctionRecord) -> dict[str, Any]:
    """One deploy."""
    return {"deploy": record.version, "digest": ran(record), "deployed_at": record.published_at}


def ran(record: FunctionRecord) -> str:
    """The digest of a deploy's code; of an image, which has no code beside it, the image's."""
    return record.image.removeprefix("sha256:") or record.digest


def _version(described: Described) -> dict[str, Any]:
    record, publication = described
    assert publication is not None
    return {
        "version": publication.number,
        "description": publication.description,
        "published_at": publication.published_at,
        "deploy": record.version,
        "digest": ran(record),
        "code_bytes": record.code_bytes,
    }


def _alias(versions: Versions, alias: Alias) -> dict[str, Any]:
    canary = {alias.other: alias.weight} if alias.other else {}
    guard = None
    if alias.guard is not None:
        requests, failed = versions.canaries.counts(alias.name, alias.alias)
        guard = {**asdict(alias.guard), "requests": requests, "failed": failed}
    return {
        "alias": alias.alias,
        "version": alias.version,
        "canary": canary,
        "description": alias.description,
        "revision": alias.revision,
        "guard": guard,
        "outcome": alias.outcome,
    }


def _provision(status: Status) -> dict[str, Any]:
    return {**asdict(status.provision), "available": status.available, "state": status.state, "reason": status.reason}


async def _parsed(request: Request, shape: type[S]) -> S:
    """A body. Raises: BadRequest."""
    return await read_json(request, shape, MAX_BODY_BYTES, "the body is not valid: {error}")
