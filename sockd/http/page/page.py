"""The page: an application of the public port that shows the worker and changes nothing.

    GET /                     functions, Zygotes, caches, the last invocations
    GET /functions/{name}     one function: its last minute, its invocations, its log
    GET /functions?name=      the same, for a form
    GET /traces/{id}          one invocation: the waterfall, and why it was cold
    GET /events[?function=]   what changes on `/` or on a function's page, as server-sent events
    GET /static/{file}        style and scripts

Owns the boards of open pages. Who may look is `access`'s affair, which is asked before anything is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import re
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from sockd.errors import NoSuchFunction, SockdError
from sockd.http.asgi import AsgiApplication
from sockd.http.connection import Connection
from sockd.http.exchange import Exchange
from sockd.http.head import Head
from sockd.http.page import assets, function_views, trace_view, views
from sockd.http.page.access import KeyNeeded, PageAccess
from sockd.http.page.boards import Board, Fragment, Part
from sockd.http.page.live import Live
from sockd.http.page.rendering import Rendering
from sockd.http.page.worker import PageWorker
from sockd.http.streams import Stream

PREFIXES: Final = (b"/functions", b"/traces/", b"/static/", b"/events")
SECURITY: Final = {
    # Scripts and style from here only, and none in the text: what a function prints can run nothing, escaped or not.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # Pages of functions have this origin, too; what they open of ours, they have no hold of.
    "cross-origin-opener-policy": "noopener-allow-popups",
}
KNOWS_NOOPENER: Final = re.compile(r'"Chromium";v="(?:12[5-9]|1[3-9]\d|[2-9]\d\d)"')
"""Browsers that do (Sec-CH-UA, which no script can set). The others get the page in a sandbox, an origin of its own; for
these that would be a new process for each page, which takes longer than all the rest."""
SANDBOX: Final = "; sandbox allow-scripts allow-forms"
HOST: Final = re.compile(r"[A-Za-z0-9.-]+(?::\d+)?")
PRIVATE: Final = {**SECURITY, "cache-control": "no-store", "cross-origin-resource-policy": "same-origin"}
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

    def __init__(self, worker: PageWorker, access: PageAccess, *, viewers: int) -> None:
        """Args: viewers: pages that are kept up to date at once."""
        self._worker = worker
        self._access = access
        self._rendering = Rendering()
        self._assets: dict[str, assets.Asset] = {}
        self._live = Live(viewers, lambda: worker.draining)
        self._index = Board(self._rendering, index_parts(worker))
        self._watched: dict[str, Board] = {}
        """Boards of functions that somebody looks at."""
        handlers: list[tuple[str, Handler]] = [
            ("/", self._index_page),
            ("/functions", self._find),
            ("/functions/{name}", self._function_page),
            ("/traces/{request_id}", self._trace_page),
            ("/events", self._events),
        ]
        routes = [Route(path, self._guarded(handler), methods=["GET"]) for path, handler in handlers]
        routes.append(Route("/static/{name}", self._static, methods=["GET"]))
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
        return await self._html(request, "index.html", self._live_values(request, fragments, "/events"))

    async def _function_page(self, request: Request) -> Response:
        name = request.path_params["name"]
        facts = function_views.facts(self._worker, name)
        board = self._watched.get(name) or Board(self._rendering, function_parts(self._worker, name))
        values = self._live_values(request, await board.refresh(), f"/events?function={name}")
        return await self._html(request, "function.html", {**values, **facts})

    async def _find(self, request: Request) -> Response:
        name = request.query_params.get("name", "").strip()
        self._worker.function(name)
        return RedirectResponse(f"/functions/{name}", 303, PRIVATE)

    async def _trace_page(self, request: Request) -> Response:
        trace = await self._worker.trace(request.path_params["request_id"])
        values: dict[str, Any] = {**trace_view.trace_page(trace), "log": None}
        with contextlib.suppress(NoSuchFunction):  # removed since
            values["log"] = function_views.log(self._worker, trace["function"], trace["request_id"])
        values["script_log"] = trace["log"]
        return await self._html(request, "trace.html", values)

    def _live_values(self, request: Request, fragments: dict[str, Fragment], events: str) -> dict[str, Any]:
        """What a page with live parts needs of them."""
        seen = ",".join(fragment.digest for fragment in fragments.values())
        return {
            "parts": {name: fragment.html for name, fragment in fragments.items()},
            "events": f"{events}{'&' if '?' in events else '?'}token={self._access.token}&seen={seen}",
            "is_live": request.query_params.get("live") != "0",
        }

    # -- what changes

    async def _events(self, request: Request) -> ASGIApp:
        name = request.query_params.get("function")
        seen = request.query_params.get("seen", "").split(",")[:MAX_SEEN]
        if name is None:
            board = self._index
        else:
            self._worker.function(name)
            board = self._watched.get(name) or Board(self._rendering, function_parts(self._worker, name))
        events = self._live.watch(board, seen)
        if name is not None:
            self._watched[name] = board
            self._watched = {name: each for name, each in self._watched.items() if each.viewers or each is board}
        return Stream(events, "text/event-stream", STREAM)

    # -- answers

    async def _static(self, request: Request) -> Response:
        asset = (await self._all_assets()).get(request.path_params["name"])
        if asset is None:
            return Response("no such file\n", 404, SECURITY, "text/plain")
        headers = {**SECURITY, "cache-control": assets.CACHE, "vary": "accept-encoding"}
        if takes_gzip(request):
            return Response(asset.packed, 200, {**headers, "content-encoding": "gzip"}, asset.media_type)
        return Response(asset.body, 200, headers, asset.media_type)

    async def _all_assets(self) -> dict[str, assets.Asset]:
        if not self._assets:
            self._assets = await asyncio.to_thread(assets.load)
        return self._assets

    async def _html(self, request: Request, template: str, values: dict[str, Any], status: int = 200) -> Response:
        common = {
            "asset": {name: asset.url for name, asset in (await self._all_assets()).items()},
            "path": request.url.path,
        }
        html = (await self._rendering.render(template, {**common, **values})).encode()
        headers = {**PRIVATE, "vary": "accept-encoding, sec-ch-ua"}
        if not KNOWS_NOOPENER.search(request.headers.get("sec-ch-ua", "")):
            headers["content-security-policy"] = sandboxed(request.headers.get("host", ""))
        if takes_gzip(request):
            html = await asyncio.to_thread(partial(gzip.compress, html, 5, mtime=0))
            headers["content-encoding"] = "gzip"
        return Response(html, status, headers, "text/html")

    async def _error(self, request: Request, error: SockdError) -> Response:
        values = {"status": error.status, "kind": error.error_type, "message": error.message}
        response = await self._html(request, "error.html", values, error.status)
        if isinstance(error, KeyNeeded):
            response.headers["www-authenticate"] = 'Basic realm="sockd", charset="UTF-8"'
        return response

    def _guarded(self, handler: Handler) -> Handler:
        """The handler behind the access rules, every error of it a page."""

        async def wrapped(request: Request) -> ASGIApp:
            try:
                if handler != self._events:
                    self._access.check(request)
                    return await handler(request)
                self._access.check_stream(request)
                return await handler(request) if request.method == "GET" else Response(None, 200, STREAM)
            except SockdError as error:
                return await self._error(request, error)
            except Exception as error:
                _log.error("%s: %s", request.url.path, "".join(traceback.format_exception(error)))
                return await self._error(request, SockdError("internal error; the worker's log tells more"))

        return wrapped

    async def _on_routing(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = {**SECURITY, **(error.headers or {})}
        return Response(f"{error.detail}\n", error.status_code, headers, "text/plain")


def index_parts(worker: PageWorker) -> list[Part]:
    """The live parts of `/`."""
    parts = (
        views.glance,
        views.functions,
        views.tree,
        views.caches,
        views.invocations,
        views.failures,
        views.cold_starts,
    )
    return [Part(view.__name__, partial(view, worker)) for view in parts]


def function_parts(worker: PageWorker, name: str) -> list[Part]:
    """The live parts of one function's page."""
    return [
        Part("lately", partial(function_views.lately, worker, name)),
        Part("invocations", partial(views.invocations, worker, name)),
        Part("failures", partial(views.failures, worker, name)),
        Part("cold_starts", partial(views.cold_starts, worker, name)),
        Part("log", partial(function_views.log, worker, name)),
    ]


def sandboxed(host: str) -> str:
    """The policy of a page that is an origin of its own, for which 'self' is not in all browsers where it came from."""
    own = f"'self' {host}" if HOST.fullmatch(host) else "'self'"
    return SECURITY["content-security-policy"].replace("'self'", own) + SANDBOX


def takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")
