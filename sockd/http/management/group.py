"""Routes of the management API for the group of workers, and for this worker's place behind a proxy.

GET /workers                  what `sockd workers` shows; a key for some functions sees names and states
GET /workers/{worker}/PATH    what another worker of the group answers to GET /PATH, to the same key
PUT /drain   DELETE /drain    /healthz answers 503, or 200 again, and requests are served all the same
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from sockd.http.management.keyed import key_of
from sockd.http.management.typed_routes import respond, typed_routes
from sockd.http.server.messages.answers import json_answer
from sockd.http.streams import Stream
from sockd.http.worker import Group, PeerAnswer

PASSED_ON = ("content-type", "retry-after", "www-authenticate")
"""Headers of another worker's answer that the client gets, besides those that every answer has."""
SHOWN_FOR_SOME = ("name", "state", "here")
"""The fields of a worker that a key for some functions is shown."""


def routes(group: Group) -> list[Route]:
    """The routes, for `Management`."""

    async def workers(request: Request) -> Response:
        rows, key = await group.workers(), key_of(request)
        if key is not None and key.functions:
            rows = [{name: row[name] for name in SHOWN_FOR_SOME if name in row} for row in rows]
        return respond(json_answer(rows))

    async def ask(request: Request) -> ASGIApp:
        worker, path = request.path_params["worker"], request.path_params["path"]
        target = f"/{quote(path, safe='/:@$')}"
        if request.url.query:
            target += f"?{request.url.query}"
        key = request.headers.get("authorization", "") if key_of(request) is not None else ""
        async with AsyncExitStack() as stack:
            answer = await stack.enter_async_context(group.ask(worker, target.encode(), key.encode("latin-1")))
            headers = {name: answer.fields[name] for name in PASSED_ON if name in answer.fields}
            if not answer.is_endless:
                return Response(await answer.body(), answer.status, headers)
            return Passed(answer, headers.pop("content-type", ""), headers, stack.pop_all())

    async def drain(request: Request) -> Response:
        draining = request.method == "PUT"
        await group.drain(draining=draining)
        return respond(json_answer({"draining": draining}))

    return typed_routes(
        [
            ("GET", "/workers", workers),
            ("GET", "/workers/{worker}/{path:path}", ask),
            ("PUT", "/drain", drain),
            ("DELETE", "/drain", drain),
        ]
    )


class Passed:
    """An answer of another worker that goes on, passed on as it comes. Owns the answer until it has ended."""

    def __init__(self, answer: PeerAnswer, media_type: str, headers: dict[str, str], owned: AsyncExitStack) -> None:
        self._stream = Stream(answer.parts(), media_type, headers, endless=True)
        self._owned = owned

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._owned:
            await self._stream(scope, receive, send)
