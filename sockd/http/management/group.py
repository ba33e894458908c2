"""Routes of the management API for the group of workers, and for this worker's place behind a proxy.

GET /workers                  what `sockd workers` shows
PUT /drain   DELETE /drain    /healthz answers 503, or 200 again, and requests are served all the same
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sockd.http.management.typed_routes import respond, typed_routes
from sockd.http.server.messages.answers import json_answer
from sockd.http.worker import Group


def routes(group: Group) -> list[Route]:
    """The routes, for `Management`."""

    async def workers(request: Request) -> Response:
        return respond(json_answer(await group.workers()))

    async def drain(request: Request) -> Response:
        draining = request.method == "PUT"
        await group.drain(draining=draining)
        return respond(json_answer({"draining": draining}))

    return typed_routes([("GET", "/workers", workers), ("PUT", "/drain", drain), ("DELETE", "/drain", drain)])
