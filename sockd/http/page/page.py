"""The application of the page. Its actions: test events, and the changes of `changes`.

    GET  /                              functions, Zygotes, caches, the last invocations
    GET  /functions/{name}[?tab=]       one function: its last minute and hour, test event, invocations; in other tabs its
                                        failures, its log, its versions and settings
    POST /functions/{name}/test-events  invokes it once, and shows the answer
    POST /functions/{name}/rollback, /disable, /enable
    GET  /functions?name=               the function of that name, or those whose names contain it
    GET  /failures[?function=]          failures by function, type and line, each with its last traceback and log
    GET  /history[?function=]           the last hour by minute
    GET  /queue[?function=]             events that wait or run, dead letters, schedules
    GET  /queue/{id}                    one event with its payload, and the error of a dead letter
    POST /queue/{id}/retry              has a dead letter run again
    GET  /workers                       the workers of the group
    GET  /traces/{id}                   one invocation: the waterfall, and why it was cold
    GET  /events[?function=&tab=]       what changes on `/` or on a function's page, as server-sent events
    GET  /static/{file}                 style and scripts

Owns the boards of open pages. Who may look is `access`'s affair, which is asked before anything is read.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from sockd.base.errors import NoSuchFunction, SockdError
from sockd.base.spelling import size
from sockd.http.access.callers import Callers
from sockd.http.page import (
    event_views,
    failure_views,
    function_views,
    group_views,
    history_views,
    sent_event,
    trace_view,
    views,
)
from sockd.http.page.access import PageAccess
from sockd.http.page.boards import Board, Fragment
from sockd.http.page.changes import FUNCTION_ACTIONS, Changes
from sockd.http.page.live import Live
from sockd.http.page.parts import OVERVIEW, TABS, function_parts, index_parts, tab_of
from sockd.http.page.responses import PRIVATE, SECURITY, Responses
from sockd.http.page.sources import PageSources
from sockd.http.server.apps.asgi import AsgiApplication
from sockd.http.server.connection import Connection
from sockd.http.server.exchange import Exchange
from sockd.http.server.messages.head import Head
from sockd.http.streams import Stream
from sockd.http.worker import Worker

PREFIXES: Final = (
    b"/functions",
    b"/failures",
    b"/history",
    b"/queue",
    b"/workers",
    b"/traces/",
    b"/static/",
    b"/events",
)
STREAM: Final = {
    **PRIVATE,
    # The origin of a page in a sandbox is "null", like that of others: the token tells them apart.
    "access-control-allow-origin": "null",
    "access-control-allow-credentials": "true",
}
MAX_SEEN: Final = 16
Handler = Callable[[Request], Awaitable[ASGIApp]]
_log = logging.getLogger("sockd.http")


class Page:
    """What a front is given; `serves` says which requests are its own."""

    def __init__(
        self, worker: Worker, sources: PageSources, access: PageAccess, callers: Callers, *, viewers: int
    ) -> None:
        """Args: callers: who may call functions at /run; viewers: pages that are kept up to date at once."""
        self._worker = worker
        self._sources = sources
        self._access = access
        self.withhold: Callable[[Head], None] | None = access.keys.withhold if access.keys is not None else None
        self._callers = callers
        self._responses = Responses(in_group=bool(worker.group.name))
        self._live = Live(viewers, lambda: worker.calls.draining)
        self._index = Board(self._responses.rendering, index_parts(worker, sources))
        self._changes = Changes(worker, sources, access)
        self._watched: dict[tuple[str, str], Board] = {}
        """Boards of functions that somebody looks at, by function and tab."""
        handlers: list[tuple[str, Handler]] = [
            ("/", self._index_page),
            ("/functions", self._find),
            ("/functions/{name}", self._function_page),
            ("/failures", self._failures_page),
            ("/history", self._history_page),
            ("/queue", self._queue_page),
            ("/workers", self._workers_page),
            ("/queue/{event_id}", self._event_page),
            ("/traces/{request_id}", self._trace_page),
            ("/events", self._events),
        ]
        routes = [Route(path, self._guarded(handler), methods=["GET"]) for path, handler in handlers]
        posts: list[tuple[str, Handler]] = [
            ("/functions/{name}/test-events", self._test_event),
            ("/queue/{event_id}/retry", self._retry),
            *((f"/functions/{{name}}/{action}", partial(self._change_function, action)) for action in FUNCTION_ACTIONS),
        ]
        routes += [Route(path, self._guarded(handler), methods=["POST"]) for path, handler in posts]
        routes.append(Route("/static/{name}", self._responses.static, methods=["GET"]))
        self._app = AsgiApplication(Starlette(routes=routes, exception_handlers={HTTPException: self._on_routing}))

    def serves(self, head: Head) -> bool:
        """Whether a request is the page's, by its path."""
        path = head.target.partition(b"?")[0]
        return path == b"/" or path.startswith(PREFIXES)

    def open(self, connection: Connection, head: Head) -> Exchange:
        return self._app.open(connection, head)

    # -- pages

    async def _index_page(self, request: Request) -> Response:
        fragments = await self._index.refresh()
        return await self._responses.html(request, "index.html", self._live_values(request, fragments, "/events"))

    async def _function_page(self, request: Request) -> Response:
        name, tab = request.path_params["name"], tab_of(request)
        facts = function_views.facts(self._worker, name)
        values = {"tab": tab, "tabs": TABS, **await self._changes.buttons(request, name)}
        if tab == "settings":
            values |= function_views.imports(self._worker, name) | function_views.registered(self._sources, name)
        elif tab == "failures":
            dead = await function_views.dead_letters(self._sources, name)
            values |= failure_views.failures_page(self._worker, name)
            values["dead"] = await self._changes.with_retry(request, dead)
        else:
            fragments = await self._board(name, tab).refresh()
            values |= self._live_values(request, fragments, f"/events?function={name}&tab={tab}")
            values |= self._form_values(request, name)
        return await self._responses.html(request, "function.html", {**values, **facts})

    def _board(self, name: str, tab: str) -> Board:
        """The live parts of a tab: those that somebody looks at, or new ones."""
        board = self._watched.get((name, tab))
        return board or Board(self._responses.rendering, function_parts(self._worker, name, tab))

    async def _find(self, request: Request) -> Response:
        name = request.query_params.get("name", "").strip()
        found = views.found_functions(self._worker, name)
        if name in found["names"]:
            return RedirectResponse(f"/functions/{name}", 303, PRIVATE)
        return await self._responses.html(request, "functions.html", found, 200 if found["names"] else 404)

    async def _failures_page(self, request: Request) -> Response:
        values = failure_views.failures_page(self._worker, request.query_params.get("function") or None)
        return await self._responses.html(request, "failures.html", values)

    async def _history_page(self, request: Request) -> Response:
        values = history_views.history_page(self._worker, request.query_params.get("function") or None)
        return await self._responses.html(request, "history.html", values)

    async def _queue_page(self, request: Request) -> Response:
        values = await event_views.queue_page(self._sources, request.query_params.get("function") or None)
        values["dead"] = await self._changes.with_retry(request, values["dead"])
        return await self._responses.html(request, "queue.html", values)

    async def _workers_page(self, request: Request) -> Response:
        group = self._worker.group
        values = group_views.workers_page(group.name, await group.workers())
        return await self._responses.html(request, "workers.html", values)

    async def _event_page(self, request: Request) -> Response:
        event = await self._sources.event(request.path_params["event_id"])
        (shown,) = await self._changes.with_retry(request, [event_views.event_page(event)])
        values = {
            **shown,
            "log": failure_views.log_of(self._worker, event["function"], event["id"]),
        }
        return await self._responses.html(request, "event.html", values)

    async def _trace_page(self, request: Request) -> Response:
        trace = await self._worker.traces.get(request.path_params["request_id"])
        values: dict[str, Any] = {**trace_view.trace_page(trace), "log": None}
        with contextlib.suppress(NoSuchFunction):  # removed since
            values["log"] = function_views.log(self._worker, trace["function"], trace["request_id"])
        values["script_log"] = trace["log"]
        return await self._responses.html(request, "trace.html", values)

    # -- actions

    async def _test_event(self, request: Request) -> Response:
        name = request.path_params["name"]
        self._access.check(request)
        event = await sent_event.read_form(request)
        self._access.check_test_event(request, name, event.token, is_open=self._callers.is_open(name))
        asked = sent_event.invocation_of(name, event)
        result = await self._worker.calls.invoke_with_log(asked)
        values = {**self._form_values(request, name), **sent_event.outcome(asked, result)}
        return await self._responses.html(request, "tested.html", values)

    async def _change_function(self, action: str, request: Request) -> Response:
        values = await self._changes.change_function(request, action, request.path_params["name"])
        return await self._responses.html(request, "changed.html", values)

    async def _retry(self, request: Request) -> Response:
        values = await self._changes.retry(request, request.path_params["event_id"])
        return await self._responses.html(request, "changed.html", values)

    def _form_values(self, request: Request, name: str) -> dict[str, Any]:
        """What the form of a test event needs."""
        takes = self._access.takes_test_events(request, is_open=self._callers.is_open(name))
        return {
            "takes_test_events": takes,
            "token": self._access.test_event_token(name) if takes else "",
            "event": "{}",
            "qualifier": "",
            "most": size(sent_event.MAX_FORM_BYTES),
        }

    def _live_values(self, request: Request, fragments: dict[str, Fragment], events: str) -> dict[str, Any]:
        """What a page with live parts needs of them."""
        seen = ",".join(fragment.digest for fragment in fragments.values())
        tab = tab_of(request)
        shown = "" if tab == OVERVIEW else f"?tab={tab}"
        return {
            "resume": f"{request.url.path}{shown}",
            "pause": f"{shown or '?'}{'&' if shown else ''}live=0",
            "parts": {name: fragment.html for name, fragment in fragments.items()},
            "events": f"{events}{'&' if '?' in events else '?'}token={self._access.token}&seen={seen}",
            "is_live": request.query_params.get("live") != "0",
        }

    # -- what changes

    async def _events(self, request: Request) -> ASGIApp:
        name, tab = request.query_params.get("function"), tab_of(request)
        seen = request.query_params.get("seen", "").split(",")[:MAX_SEEN]
        if name is None:
            board = self._index
        else:
            self._worker.functions.info(name)
            board = self._board(name, tab)
        events = self._live.watch(board, seen)
        if name is not None:
            self._watched[name, tab] = board
            self._watched = {key: each for key, each in self._watched.items() if each.viewers or each is board}
        return Stream(events, "text/event-stream", STREAM, endless=True)

    def _guarded(self, handler: Handler) -> Handler:
        """The handler behind the access rules, every error of it a page."""

        async def wrapped(request: Request) -> ASGIApp:
            try:
                if handler != self._events:
                    self._access.check(request)
                    return await handler(request)
                self._access.check_stream(request)
                return await handler(request) if request.method == "GET" else Response(None, 200, STREAM)
            except ClientDisconnect:
                return Response(status_code=400)  # its client has gone
            except SockdError as error:
                return await self._responses.error(request, error)
            except Exception as error:
                _log.error("%s: %s", request.url.path, "".join(traceback.format_exception(error)))
                return await self._responses.error(request, SockdError("internal error; the worker's log tells more"))

        return wrapped

    async def _on_routing(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = {**SECURITY, **(error.headers or {})}
        return Response(f"{error.detail}\n", error.status_code, headers, "text/plain")
