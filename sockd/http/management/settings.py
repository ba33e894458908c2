"""The route of the management API for settings of a function without its code.

    PATCH /functions/{name}/settings?check=1    {"timeout_s"?, "init_timeout_s"?, "memory_mb"?, "concurrency"?, "run"?,
                                                 "network"?, "egress"?, "writable_root"?, "snapshot"?}

A change is a new version, except of `egress` alone: that holds at once for all sandboxes. A version whose starts differ is
started once before it serves, as a deploy's is; `check=0` leaves this out. Owns nothing.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sockd.base.config import RunRule
from sockd.http.management.typed_routes import function_name, is_checked, respond, typed_routes
from sockd.http.server.messages.answers import json_answer
from sockd.http.uploads import read_json
from sockd.http.worker import Functions

_MAX_BODY_BYTES = 64 * 1024
_REFUSED = (
    'send {{"timeout_s": S, "init_timeout_s": S, "memory_mb": MB, "concurrency": N, "run": open|keys|off, '
    '"network": host|none|private, "egress": [RULE], "writable_root": true|false, "snapshot": true|false}}, or some of it'
)


class Settings(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The body; what is missing stays as it is."""

    timeout_s: float | None = None
    init_timeout_s: float | None = None
    memory_mb: int | None = None
    concurrency: int | None = None
    run: RunRule | None = None
    network: Literal["host", "none", "private"] | None = None
    egress: list[str] | None = None
    writable_root: bool | None = None
    snapshot: bool | None = None


def routes(functions: Functions) -> list[Route]:
    """The route, for `Management`."""

    async def change(request: Request) -> Response:
        name, wanted = function_name(request), await read_json(request, Settings, _MAX_BODY_BYTES, _REFUSED)
        changes: dict[str, Any] = msgspec.to_builtins(wanted)
        if changes:
            await functions.configure(name, changes, is_checked=is_checked(request))
        return respond(json_answer(functions.info(name)))

    return typed_routes([("PATCH", "/functions/{name}/settings", change)])
