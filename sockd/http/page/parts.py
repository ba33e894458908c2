"""The live parts of the pages, and the tabs of a function's page. Owns nothing."""

from __future__ import annotations

from functools import partial
from typing import Final

from starlette.requests import Request

from sockd.http.page import event_views, function_views, history_views, service_views, tree_view, views
from sockd.http.page.boards import Part
from sockd.http.page.sources import PageSources
from sockd.http.worker import Worker

OVERVIEW: Final = "overview"
TABS: Final = ((OVERVIEW, "Overview"), ("failures", "Failures"), ("log", "Log"), ("settings", "Versions and settings"))
"""The tabs of a function's page, each with its label."""


def index_parts(worker: Worker, sources: PageSources) -> list[Part]:
    """The live parts of `/`."""
    return [
        Part("glance", partial(views.glance, worker)),
        Part("functions", partial(views.functions, worker)),
        Part("history", partial(history_views.history, worker)),
        Part("tree", partial(tree_view.tree, worker)),
        Part("caches", partial(views.caches, worker)),
        Part("events", partial(event_views.events, sources)),
        Part("invocations", partial(views.invocations, worker)),
        Part("failures", partial(views.failures, worker)),
        Part("cold_starts", partial(views.cold_starts, worker)),
    ]


def tab_of(request: Request) -> str:
    """The tab that a request asks for; the overview, if there is no such tab."""
    wanted = request.query_params.get("tab", OVERVIEW)
    return wanted if wanted in dict(TABS) else OVERVIEW


def function_parts(worker: Worker, name: str, tab: str = OVERVIEW) -> list[Part]:
    """The live parts of a tab of one function's page; the other tabs are as of loading."""
    if tab == "log":
        return [Part("log", partial(function_views.log, worker, name))]
    if tab != OVERVIEW:
        return []
    is_service = service_views.row_of(worker, name) is not None
    return [
        *([Part("service", partial(service_views.service, worker, name))] if is_service else []),
        Part("lately", partial(function_views.recent_rates, worker, name)),
        Part("history", partial(history_views.history, worker, name)),
        Part("invocations", partial(views.invocations, worker, name)),
        Part("failures", partial(views.failures, worker, name)),
        Part("cold_starts", partial(views.cold_starts, worker, name)),
    ]
