"""The page on a server of its own, behind a front as in a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sockd.base.config import HttpConfig
from sockd.http.access.callers import Callers
from sockd.http.front import Front
from sockd.http.page.access import PageAccess
from sockd.http.page.page import Page
from sockd.http.server.listening.sockets import bind_tcp
from sockd.http.server.server import HttpServer
from tests.http.page.fake_page_worker import FakePageSources, FakePageWorker

SANDBOX_UIDS = 0x10000000


@pytest.fixture
def worker() -> FakePageWorker:
    return FakePageWorker("echo", "thumbnails")


@pytest.fixture
def sources() -> FakePageSources:
    return FakePageSources()


@pytest.fixture
def page(worker: FakePageWorker, sources: FakePageSources) -> Page:
    return Page(worker, sources, PageAccess(None, base_uid=SANDBOX_UIDS), Callers(HttpConfig()), viewers=2)


@pytest.fixture
async def port(worker: FakePageWorker, page: Page) -> AsyncIterator[int]:
    server = HttpServer(Front(worker, HttpConfig(listen="127.0.0.1:0"), site=page), bind_tcp("127.0.0.1:0"))
    await server.start()
    yield server.port
    worker.calls.draining = True
    await server.aclose(0)
