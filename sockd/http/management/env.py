"""Routes of the management API for environments.

    GET    /functions/{name}/env?values=1               {"env": {"KEY": "value" or null}, "secrets": ["KEY"]}
    PATCH  /functions/{name}/env?check=1                {"set": {"KEY": "value"}, "unset": ["KEY"]}
    PUT    /functions/{name}/secrets/{key}?check=1      the value
    DELETE /functions/{name}/secrets/{key}?check=1
    GET    /secrets                                     {"function": ["KEY"]}

Values of secrets are accepted and never returned. A changed version is started once before it serves, as a deploy's is; `check=0`
leaves this out. Owns nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sockd.base.errors import BadRequest
from sockd.http.management.typed_routes import function_name, is_checked, respond, typed_routes
from sockd.http.server.messages.answers import json_answer
from sockd.http.uploads import read_body, read_json

MAX_BODY_BYTES = 64 * 1024


class EnvironmentsApi(Protocol):
    """What these routes ask of the worker (`sockd.functions.environments`)."""

    def show(self, name: str, *, values: bool) -> dict[str, Any]: ...
    def secrets(self) -> dict[str, list[str]]: ...
    async def change(self, name: str, given: dict[str, str], unset: list[str], *, is_checked: bool) -> None: ...
    async def set_secret(self, name: str, key: str, value: str, *, is_checked: bool) -> None: ...
    async def remove_secret(self, name: str, key: str, *, is_checked: bool) -> None: ...


class Change(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a PATCH."""

    set: dict[str, object] = {}
    unset: list[str] = []


def routes(environments: EnvironmentsApi) -> list[Route]:
    """The routes, for `Management`."""

    async def show(request: Request) -> Response:
        values = request.query_params.get("values", "0") == "1"
        return respond(json_answer(environments.show(function_name(request), values=values)))

    async def change(request: Request) -> Response:
        # Not in the decoder's words, which could quote a value.
        refused = 'send {{"set": {{"KEY": "value"}}, "unset": ["KEY"]}}, all of them text'
        wanted = await read_json(request, Change, MAX_BODY_BYTES, refused)
        name = function_name(request)
        given = {key: _text(key, value) for key, value in wanted.set.items()}
        await environments.change(name, given, wanted.unset, is_checked=is_checked(request))
        return respond(json_answer(environments.show(name, values=False)))

    async def set_secret(request: Request) -> Response:
        name, key = function_name(request), request.path_params["key"]
        try:
            value = (await read_body(request, MAX_BODY_BYTES)).decode()
        except UnicodeDecodeError:
            raise BadRequest("the value of a secret must be UTF-8") from None
        await environments.set_secret(name, key, value, is_checked=is_checked(request))
        return respond(json_answer(environments.show(name, values=False)))

    async def remove_secret(request: Request) -> Response:
        name = function_name(request)
        await environments.remove_secret(name, request.path_params["key"], is_checked=is_checked(request))
        return respond(json_answer(environments.show(name, values=False)))

    async def list_secrets(request: Request) -> Response:
        return respond(json_answer(environments.secrets()))

    return typed_routes(
        [
            ("GET", "/functions/{name}/env", show),
            ("PATCH", "/functions/{name}/env", change),
            ("PUT", "/functions/{name}/secrets/{key}", set_secret),
            ("DELETE", "/functions/{name}/secrets/{key}", remove_secret),
            ("GET", "/secrets", list_secrets),
        ]
    )


def _text(key: str, value: object) -> str:
    """Raises: BadRequest for a value that is no text, with its name."""
    if not isinstance(value, str):
        raise BadRequest(f'set.{key[:80]} must be text: {{"set": {{"{key[:80]}": "value"}}}}')
    return value
