"""The management API: deploy, list, remove, logs, packages, over a Unix socket that only root can open.

    GET    /functions                      GET    /status  /tree  /packages
    PUT    /functions/{name}     zip       POST   /packages        requirements text
    GET    /functions/{name}               DELETE /packages/{key}  POST /packages/forgive  a name, or nothing: all
    DELETE /functions/{name}
    POST   /functions/{name}/invoke       POST   /functions/{name}/record
    PUT    /functions/{name}/initscript   a WebAssembly module

A PUT of a function may bring its initscript, too: before the zip, as many bytes as the header x-sockd-initscript-bytes
says. What takes long (PUT, POST /packages) answers 200 and streams lines of JSON: {"progress": ...} as it goes, with "note":
true for what its user is to know afterwards, too, then one {"result": ...} or {"error": {...}}. Closing the connection before
that cancels the work.

`env` has the routes of environments, `logs` those of logs, `live` those of what happens now and happened last.
Owns the temporary file of an upload. Knows nothing of functions.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from sockd.base.config import Config
from sockd.base.errors import BadInitscript, BadRequest
from sockd.base.invoke_request import InvokeRequest
from sockd.base.notes import Progress
from sockd.base.request_ids import new_request_id, request_id_text
from sockd.http.management import group
from sockd.http.management import live as management_live
from sockd.http.management import logs as management_logs
from sockd.http.management.keyed import key_of
from sockd.http.management.typed_routes import Handler, called, function_name, respond, typed_routes
from sockd.http.paths import NoSuchPage
from sockd.http.plain_calls import INVOCATION_TYPE, accepted, is_fresh, run
from sockd.http.server.apps.asgi import AsgiApplication
from sockd.http.server.limits import ConnectionLimits
from sockd.http.server.messages.answers import error_body, json_answer
from sockd.http.streams import Work
from sockd.http.uploads import parse_json, read_body, store
from sockd.http.worker import Worker

OVERRIDES_HEADER: Final = "x-sockd-overrides"
"""A JSON object of `sockd.toml` keys, ASCII, that win over those of the archive."""
INITSCRIPT_HEADER: Final = "x-sockd-initscript-bytes"
"""How many bytes of the body, before the zip, are a WebAssembly module."""
LIMITS: Final = ConnectionLimits(connections=256, body_s=600.0, stall_s=math.inf, half_close=False)
"""For the server of this API: uploads take their time, and a client that leaves must be noticed."""
STATUS_FOR_SOME: Final = ("version", "limits")
"""The fields of the status that a key for some functions is shown: those that a deploy needs."""
_MAX_NAME_BYTES = 300
_MAX_REQUIREMENTS_BYTES = 1 << 20


class Management:
    """The application of the Unix socket; `app` is what a server is given."""

    def __init__(self, worker: Worker, config: Config, tmp: Path, routes: Sequence[Route] = ()) -> None:
        """Args: tmp: a directory for uploads, on the disk of the state directory; routes: those of other files."""
        self._worker = worker
        self._config = config
        self._tmp = tmp
        handlers: list[tuple[str, str, Handler]] = [
            ("GET", "/functions", self._list),
            ("PUT", "/functions/{name}", self._deploy),
            ("GET", "/functions/{name}", self._describe),
            ("DELETE", "/functions/{name}", self._remove),
            ("POST", "/functions/{name}/invoke", self._invoke),
            ("PUT", "/functions/{name}/initscript", self._deploy_initscript),
            ("POST", "/functions/{name}/record", self._record),
            ("GET", "/status", self._status),
            ("GET", "/tree", self._tree),
            ("GET", "/packages", self._packages),
            ("POST", "/packages", self._add_packages),
            ("POST", "/packages/forgive", self._forgive_packages),
            ("DELETE", "/packages/{key}", self._remove_package),
        ]
        self.routes = [
            *(
                *typed_routes(handlers),
                *management_logs.routes(worker),
                *management_live.routes(worker),
                *group.routes(worker.group),
            ),
            *routes,
        ]
        """All of them; what each requires of a key is in `permissions`."""
        app = Starlette(routes=self.routes, exception_handlers={HTTPException: _on_http_exception})
        self.app = AsgiApplication(app)

    async def _list(self, request: Request) -> Response:
        functions, key = self._worker.functions.all(), key_of(request)
        if key is not None and key.functions:
            functions = [function for function in functions if function.name in key.functions]
        return respond(json_answer(functions))

    async def _describe(self, request: Request) -> Response:
        return respond(json_answer(self._worker.functions.info(function_name(request))))

    async def _remove(self, request: Request) -> Response:
        name = function_name(request)
        await self._worker.functions.remove(name)
        return respond(json_answer({"removed": name}))

    async def _deploy(self, request: Request) -> ASGIApp:
        name = function_name(request)
        overrides = _overrides(request)
        with contextlib.ExitStack() as stack:
            archive = stack.enter_context(tempfile.NamedTemporaryFile(dir=self._tmp, suffix=".zip"))
            limit = self._config.code.max_zip_bytes
            prefix_bytes = self._initscript_bytes(request)
            initscript = await store(request, archive, limit, prefix_bytes=prefix_bytes, setting="code.max_zip_bytes")
            owned = stack.pop_all()

        async def deploy(progress: Progress) -> object:
            return await self._worker.functions.deploy(
                name, Path(archive.name), overrides=overrides, progress=progress, initscript=initscript or None
            )

        return Work(deploy, owned)

    def _initscript_bytes(self, request: Request) -> int:
        """How much of a body is an initscript. Raises: BadRequest, BadInitscript."""
        text = request.headers.get(INITSCRIPT_HEADER, "0")
        if not text.isascii() or not text.isdigit() or len(text) > 12:
            raise BadRequest(f"{INITSCRIPT_HEADER} must be a number")
        limit = self._config.initscripts.max_module_kb * 1024
        if int(text) > limit:
            raise BadInitscript(f"the initscript has {int(text)} bytes; the limit is {limit}")
        return int(text)

    async def _deploy_initscript(self, request: Request) -> ASGIApp:
        name = function_name(request)
        wasm = await read_body(request, self._config.initscripts.max_module_kb * 1024)

        async def deploy(progress: Progress) -> object:
            return await self._worker.functions.deploy_initscript(name, wasm, progress)

        return Work(deploy, contextlib.ExitStack())

    async def _record(self, request: Request) -> Response:
        arrived_ns = time.monotonic_ns()
        name, payload = function_name(request), await read_body(request, self._config.http.max_payload_bytes)
        recorded = await self._worker.calls.record(InvokeRequest(name, payload or b"{}", new_request_id(), arrived_ns))
        return respond(json_answer(recorded))

    async def _invoke(self, request: Request) -> Response:
        arrived_ns = time.monotonic_ns()
        payload = await read_body(request, self._config.http.max_payload_bytes)
        name, qualifier = called(request)
        wanted = InvokeRequest(name, payload or b"{}", new_request_id(), arrived_ns, qualifier=qualifier)
        asked = dict(request.headers.raw)
        wanted.fresh = is_fresh(asked)
        if asked.get(INVOCATION_TYPE) == b"Event":
            return respond(await accepted(self._worker.events, wanted, source="cli"))
        return respond(await run(self._worker.calls, wanted))

    async def _status(self, request: Request) -> Response:
        status, key = self._worker.numbers.status(), key_of(request)
        if key is not None and key.functions:
            status = {name: status[name] for name in STATUS_FOR_SOME if name in status}
        return respond(json_answer(status))

    async def _tree(self, request: Request) -> Response:
        return respond(json_answer(self._worker.numbers.tree()))

    async def _packages(self, request: Request) -> Response:
        return respond(json_answer(self._worker.packages.all()))

    async def _add_packages(self, request: Request) -> ASGIApp:
        body = await read_body(request, _MAX_REQUIREMENTS_BYTES)
        try:
            requirements = body.decode()
        except UnicodeDecodeError:
            raise BadRequest("requirements must be UTF-8 text, as in requirements.txt") from None

        async def add(progress: Progress) -> object:
            return await self._worker.packages.add(requirements, progress)

        return Work(add, contextlib.ExitStack())

    async def _forgive_packages(self, request: Request) -> Response:
        name = (await read_body(request, _MAX_NAME_BYTES)).decode(errors="replace").strip()
        return respond(json_answer({"forgiven": self._worker.packages.forgive(name or None)}))

    async def _remove_package(self, request: Request) -> Response:
        key = request.path_params["key"]
        await self._worker.packages.remove(key)
        return respond(json_answer({"removed": key}))


def _overrides(request: Request) -> dict[str, Any]:
    header = request.headers.get(OVERRIDES_HEADER)
    if header is None:
        return {}
    return parse_json(header, dict[str, Any], OVERRIDES_HEADER + " is not a JSON object: {error}")


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = error_body(NoSuchPage(error.detail), request_id_text(new_request_id()))
    return Response(body, error.status_code, error.headers, "application/json")
