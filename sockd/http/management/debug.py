"""The route of the management API for debugging: one invocation that waits for a debugger.

    POST /functions/{name}[:version or alias]/debug?port=     the event

Lines of JSON: {"progress": ...} while the debugger is installed, {"listening": port} when the function waits for one at that
port of 127.0.0.1, then {"result": {"status", "headers", "body" in base64}}, the answer as `/run` would give it, or {"error"}.
Closing the connection ends the sandbox. Port 0 is any that is free.
"""

from __future__ import annotations

import contextlib
import time

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from sockd.base.errors import BadRequest
from sockd.base.invoke_request import InvokeRequest
from sockd.base.notes import Progress
from sockd.base.request_ids import new_request_id, request_id_text
from sockd.http.management.typed_routes import called, typed_routes
from sockd.http.server.messages.answers import failure, success
from sockd.http.streams import Work
from sockd.http.uploads import read_body
from sockd.http.worker import Calls


class ProgressLines:
    """Sends progress to the client."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def progress(self, text: str) -> None:
        self._work.tell(progress=text)

    def listening(self, port: int) -> None:
        self._work.tell(listening=port)


def routes(calls: Calls, max_payload_bytes: int) -> list[Route]:
    """The route, for `Management`."""

    async def debug(request: Request) -> ASGIApp:
        arrived_ns = time.monotonic_ns()
        port = port_of(request.query_params.get("port", "0"))
        payload = await read_body(request, max_payload_bytes)
        name, qualifier = called(request)
        wanted = InvokeRequest(name, payload or b"{}", new_request_id(), arrived_ns, qualifier=qualifier)

        async def run(progress: Progress) -> object:
            text_id = request_id_text(wanted.id)
            try:
                answer = success(await calls.debug(wanted, port, ProgressLines(work)), text_id)
            except Exception as error:
                answer = failure(error, text_id)
            fields = dict(line.split(": ", 1) for line in answer.fields.splitlines())
            return {"status": answer.status, "headers": fields, "body": answer.body}

        work = Work(run, contextlib.ExitStack())
        return work

    return typed_routes([("POST", "/functions/{name}/debug", debug)])


def port_of(text: str) -> int:
    """A port as a query says it. Raises: BadRequest."""
    if not text.isascii() or not text.isdigit() or len(text) > 5 or int(text) > 65535:
        raise BadRequest("port must be a number from 0 to 65535")
    return int(text)
