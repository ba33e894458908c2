"""Routes of the management API for keys.

    GET    /keys           all, without their secrets
    POST   /keys           {"name", "may": ["read", "invoke", "deploy"], "functions"?: ["NAME"]}; the answer has "key", once
    DELETE /keys/{name}
    GET    /key            the one that the request shows

But for the last over the worker's own socket alone (`keyed_management`): a key makes no keys. Owns nothing.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sockd.http.access.keys import Keys, Right
from sockd.http.management.typed_routes import respond, typed_routes
from sockd.http.server.messages.answers import json_answer
from sockd.http.uploads import read_json

_MAX_BODY_BYTES = 64 * 1024
_REFUSED = (
    'send {{"name": "NAME", "may": ["read", "invoke", "deploy"] or some of these, "functions": ["NAME"]}}: {error}'
)


class KeyBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST."""

    name: str
    may: list[Right]
    functions: list[str] = []


def routes(keys: Keys) -> list[Route]:
    """The routes, for `Management`."""

    async def show_all(request: Request) -> Response:
        return respond(json_answer([key.shown() for key in keys.list()]))

    async def add(request: Request) -> Response:
        wanted = await read_json(request, KeyBody, _MAX_BODY_BYTES, _REFUSED)
        return respond(json_answer({"key": await keys.add(wanted.name, wanted.may, wanted.functions)}))

    async def remove(request: Request) -> Response:
        name = request.path_params["name"]
        await keys.remove(name)
        return respond(json_answer({"removed": name}))

    async def own(request: Request) -> Response:
        """The key that this request shows, for `sockd login`; over the socket there is none, as it needs none."""
        shown = request.headers.get("authorization")
        if shown is None:
            return respond(json_answer({"name": "", "may": ["read", "invoke", "deploy"], "functions": []}))
        return respond(json_answer(keys.bearer(shown.encode("latin-1")).shown()))

    return typed_routes(
        [("GET", "/keys", show_all), ("POST", "/keys", add), ("DELETE", "/keys/{name}", remove), ("GET", "/key", own)]
    )
