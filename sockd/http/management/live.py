"""Routes of the management API for the current state of the worker and its last invocations.

    GET /live?limit=                              what `sockd top` shows
    GET /services                                 what `sockd ps` shows
    GET /functions/{name}/imports                 what `sockd imports` shows
    GET /traces?limit=&order=&kind=&function=     GET /traces/{request id}

`order` is `newest` or `slowest`; `kind` is `any`, `cold`, `failed` or `slow`, each of which is remembered by itself. Rows of a
list have their end as Unix time, too (`answered_s`): other times are those of a clock that the machine has alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sockd.base.errors import BadRequest
from sockd.http.management.narrowing import functions_of, sees, wanted
from sockd.http.management.typed_routes import MAX_LIMIT, function_name, limit, respond, typed_routes
from sockd.http.server.messages.answers import json_answer
from sockd.http.worker import Worker
from sockd.observe.traces import TraceKind

MAX_ROWS = 500
KINDS: dict[str, TraceKind] = {kind: kind for kind in get_args(TraceKind)}
ORDERS: dict[str, Callable[[dict[str, Any]], int] | None] = {
    "newest": None,
    "slowest": lambda trace: trace["arrived_ns"] - trace["answered_ns"],
}


def routes(worker: Worker) -> list[Route]:
    """The routes, for `Management`."""

    async def live(request: Request) -> Response:
        return respond(json_answer(worker.numbers.live(min(limit(request.query_params.get("limit", "50")), MAX_ROWS))))

    async def services(request: Request) -> Response:
        return respond(json_answer([row for row in worker.numbers.services() if sees(request, row["name"])]))

    async def traces(request: Request) -> Response:
        query = request.query_params
        most, order = limit(query.get("limit", "20")), query.get("order", "newest")
        if order not in ORDERS:
            raise BadRequest(f"order must be one of {', '.join(ORDERS)}")
        key, kind = ORDERS[order], KINDS.get(query.get("kind", "any"))
        if kind is None:
            raise BadRequest(f"kind must be one of {', '.join(KINDS)}")
        functions, each_most = wanted(request, query.get("function") or None), MAX_LIMIT if key is not None else most
        chosen = [each for function in functions for each in worker.traces.last(each_most, function, kind)]
        if key is not None:
            chosen.sort(key=key)
        elif functions[1:]:
            chosen.sort(key=lambda trace: trace["answered_ns"], reverse=True)
        return respond(json_answer([_dated(each) for each in chosen[:most]]))

    async def trace(request: Request) -> Response:
        return respond(json_answer(await worker.traces.get(request.path_params["request_id"], functions_of(request))))

    async def imports(request: Request) -> Response:
        return respond(json_answer(worker.packages.imports(function_name(request))))

    return typed_routes(
        [
            ("GET", "/live", live),
            ("GET", "/services", services),
            ("GET", "/functions/{name}/imports", imports),
            ("GET", "/traces", traces),
            ("GET", "/traces/{request_id}", trace),
        ]
    )


def _dated(trace: dict[str, Any]) -> dict[str, Any]:
    ago_s = (time.monotonic_ns() - trace["answered_ns"]) / 1e9
    return {**trace, "answered_s": time.time() - ago_s}
