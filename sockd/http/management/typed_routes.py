"""Common parts of the management routes: names from paths, answers, errors.

Owns nothing. A file `management_<noun>.py` makes its routes with `typed_routes`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from sockd.base.errors import BadRequest
from sockd.base.request_ids import new_request_id, request_id_text
from sockd.http.paths import FUNCTION_NAME
from sockd.http.server.messages.answers import Answer, failure

MAX_LIMIT = 10_000
_CALLED = re.compile(rb"[A-Za-z0-9_-]{1,64}(?::(?:\$LATEST|[A-Za-z0-9_-]{1,128}))?")
Handler = Callable[[Request], Awaitable[ASGIApp]]


def typed_routes(handlers: Sequence[tuple[str, str, Handler]]) -> list[Route]:
    """Routes of (method, path, handler); every exception of a handler is answered as in the front."""
    return [Route(path, _typed(handler), methods=[method]) for method, path, handler in handlers]


def function_name(request: Request) -> str:
    """The `{name}` of a path. Raises: BadRequest."""
    name: str = request.path_params["name"]
    if not FUNCTION_NAME.fullmatch(name.encode()):
        raise BadRequest(f"{name[:80]!r} cannot be a function's name: use 1 to 64 of A-Z a-z 0-9 _ -")
    return name


def called(request: Request) -> tuple[str, str]:
    """The `{name}` of a path as a function, and the version or alias of it that follows a colon, or nothing.

    Raises: BadRequest."""
    text: str = request.path_params["name"]
    if not _CALLED.fullmatch(text.encode()):
        raise BadRequest(f"{text[:80]!r} cannot be a function's name, with :VERSION or :ALIAS or without")
    name, _, qualifier = text.partition(":")
    return name, qualifier


def is_checked(request: Request) -> bool:
    """Return whether a change is started once before it holds: `?check=0` says no. Raises: BadRequest."""
    text = request.query_params.get("check", "1")
    if text not in ("0", "1"):
        raise BadRequest("check must be 0 or 1")
    return text == "1"


def limit(text: str) -> int:
    """A number of entries, as a query says it. Raises: BadRequest."""
    if not text.isascii() or not text.isdigit() or len(text) > 6 or int(text) > MAX_LIMIT:
        raise BadRequest(f"limit must be a number from 0 to {MAX_LIMIT}")
    return int(text)


def respond(answer: Answer) -> Response:
    """An answer of the front's, as Starlette wants it."""
    fields = dict(line.split(": ", 1) for line in answer.fields.split("\r\n") if line)
    return Response(answer.body, answer.status, fields)


def _typed(handler: Handler) -> Handler:
    """Only routing's own exceptions reach Starlette."""

    async def wrapped(request: Request) -> ASGIApp:
        try:
            return await handler(request)
        except ClientDisconnect:
            return Response(status_code=400)  # its client has gone
        except Exception as error:
            return respond(failure(error, request_id_text(new_request_id())))

    return wrapped
