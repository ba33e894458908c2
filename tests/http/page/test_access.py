"""Who may look at the page: this machine, but not what runs in sandboxes; elsewhere who has a key."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sockd.base.config import Config, HttpConfig, LambdaApiConfig, PageConfig
from sockd.base.uids import NODE_BELOW, PROXY_BELOW, ROOT_UIDS
from sockd.http.access.callers import Callers
from sockd.http.access.keys import Keys, Right
from sockd.http.front import Front
from sockd.http.page import access as access_module
from sockd.http.page.access import PageAccess
from sockd.http.page.page import Page
from sockd.http.server.listening.sockets import bind_tcp
from sockd.http.server.server import HttpServer
from tests.http.page.fake_page_worker import REQUEST_ID, FakePageSources, FakePageWorker
from tests.http.raw import get, raw

OPEN = Callers(HttpConfig())
pytestmark = pytest.mark.anyio

SECRET = "0123456789abcdef"
KEYS = LambdaApiConfig(keys={"ALICE": SECRET, "BOB": SECRET[::-1]})
PAGES = ("/", "/functions/echo", f"/traces/{REQUEST_ID}")
SHOWN = "Sec-Fetch-Dest: document"
BASE_UID = Config().sandbox.base_uid


def config(listen: str = "127.0.0.1:0", keys: LambdaApiConfig | None = None, **page: Any) -> Config:
    return Config(http=HttpConfig(listen=listen), lambda_api=keys or LambdaApiConfig(), page=PageConfig(**page))


@pytest.mark.parametrize(
    ("configured", "there"),
    [
        (config(), True),
        (config("[::1]:5000"), True),
        (config(enabled=False), False),
        (config("0.0.0.0:5000", KEYS), False),
        (config("0.0.0.0:5000", KEYS, enabled=True), True),
    ],
)
def test_by_default_there_is_a_page_on_loopback_only(configured: Config, there: bool) -> None:
    assert (PageAccess.of(configured, Keys()) is not None) == there


@asynccontextmanager
async def shown(worker: FakePageWorker, access: PageAccess, viewers: int) -> AsyncGenerator[int]:
    """A server with the page. Yields its port."""
    page = Page(worker, FakePageSources(), access, OPEN, viewers=viewers)
    server = HttpServer(Front(worker, HttpConfig(listen="127.0.0.1:0"), site=page), bind_tcp("127.0.0.1:0"))
    await server.start()
    yield server.port
    await server.aclose(0)


async def statuses(access: PageAccess | None, *headers: str) -> list[int]:
    assert access is not None
    worker = FakePageWorker("echo")
    worker.calls.draining = True  # a stream that is opened ends at once
    found = []
    async with shown(worker, access, viewers=4) as port:
        for path in (*PAGES, f"/events?token={access.token}"):
            async with raw(port) as client:
                found.append((await client.ask(get(path, *headers))).status)
    assert bool(worker.read) == (found[0] == 200)
    return found


async def test_this_machine_may_look() -> None:
    assert await statuses(PageAccess.of(config(), Keys())) == [200] * 4


@pytest.mark.parametrize(
    "uid", [BASE_UID, BASE_UID + 2 * ROOT_UIDS - 1, BASE_UID - 1, BASE_UID - PROXY_BELOW, BASE_UID - NODE_BELOW, None]
)
async def test_sandboxes_the_engine_and_one_that_is_unknown_may_not(
    monkeypatch: pytest.MonkeyPatch, uid: int | None
) -> None:
    monkeypatch.setattr(access_module, "owner", lambda *ends: uid)
    assert await statuses(PageAccess.of(config(), Keys())) == [403] * 4


async def test_an_engine_with_a_uid_of_its_own_may_not_either() -> None:
    assert await statuses(PageAccess(None, base_uid=BASE_UID, engine_uid=os.getuid())) == [403] * 4
    assert await statuses(PageAccess(None, base_uid=BASE_UID, engine_uid=os.getuid() + 1)) == [403] * 4


async def test_a_proxys_clients_may_not_unless_they_are_asked_for_a_key() -> None:
    assert await statuses(PageAccess.of(config(), Keys()), "X-Forwarded-For: 192.0.2.7") == [403] * 4
    credentials = basic(f"BOB:{SECRET[::-1]}")
    asking = PageAccess.of(config(keys=KEYS, ask_for_key=True), Keys())
    assert await statuses(asking, "X-Forwarded-For: 192.0.2.7", SHOWN, credentials) == [200] * 4


def basic(text: str) -> str:
    return f"Authorization: Basic {base64.b64encode(text.encode()).decode()}"


@pytest.mark.parametrize(
    "header",
    [
        "Accept: */*",
        basic("ALICE:"),
        basic(f"ALICE:{SECRET[::-1]}"),
        basic(f"alice:{SECRET}"),
        basic("ALICE"),
        "Authorization: Basic §",
        f"Authorization: Bearer {SECRET}",
    ],
)
async def test_who_has_no_key_is_asked_for_one(header: str) -> None:
    assert await statuses(PageAccess.of(config("0.0.0.0:0", KEYS, enabled=True), Keys()), header) == [401] * 4


async def test_who_has_a_key_may_look_and_the_browser_learns_how() -> None:
    access = PageAccess.of(config("0.0.0.0:0", KEYS, enabled=True), Keys())
    assert await statuses(access, SHOWN, basic(f"ALICE:{SECRET}")) == [200] * 4
    assert access is not None
    async with shown(FakePageWorker("echo"), access, viewers=1) as port, raw(port) as client:
        reply = await client.ask(get("/"))
    assert reply.headers["www-authenticate"].startswith("Basic")


def page_key(text: str) -> str:
    return basic(f"whoever:{text}")


@pytest.mark.parametrize("configured", [config("0.0.0.0:0", enabled=True), config(ask_for_key=True)])
async def test_a_key_of_the_worker_that_may_read_opens_the_page_until_it_is_revoked(
    configured: Config, tmp_path: Path
) -> None:
    keys = Keys.open(tmp_path / "keys.json")
    access = PageAccess.of(configured, keys)
    assert access is not None and access.keys is not None and not access.keys.are_there
    assert await statuses(access, SHOWN) == [401] * 4
    text = await keys.add("alice", ["read"])
    assert access.keys.are_there
    assert await statuses(access, SHOWN, page_key(text)) == [200] * 4
    assert await statuses(access, SHOWN, page_key(text[:-1] + "g")) == [401] * 4
    assert await statuses(access, SHOWN, f"Authorization: Bearer {text}") == [401] * 4
    await keys.remove("alice")
    assert await statuses(access, SHOWN, page_key(text)) == [401] * 4


@pytest.mark.parametrize(("rights", "functions"), [(["invoke", "deploy"], []), (["read"], ["echo"])])
async def test_a_key_that_may_not_read_all_functions_does_not_open_the_page(
    rights: list[Right], functions: list[str], tmp_path: Path
) -> None:
    keys = Keys.open(tmp_path / "keys.json")
    text = await keys.add("alice", rights, functions)
    access = PageAccess.of(config(ask_for_key=True), keys)
    assert await statuses(access, SHOWN, page_key(text)) == [401] * 4


async def test_a_script_of_a_functions_page_may_not_read_the_page() -> None:
    access = PageAccess.of(config(), Keys())
    for wanted_for in ("empty", "iframe", "object", "script", "serviceworker"):
        assert await statuses(access, f"Sec-Fetch-Dest: {wanted_for}") == [403, 403, 403, 200]
    assert await statuses(access, SHOWN) == [200] * 4


async def test_a_stream_wants_the_token_that_stands_in_the_page() -> None:
    access = PageAccess.of(config(), Keys())
    assert access is not None
    real, access.token = access.token, "another"
    assert await statuses(access) == [200] * 4
    async with shown(FakePageWorker("echo"), access, viewers=1) as port:
        for query in ("", "?token=", f"?token={real}", "?token=%C3%A9"):
            async with raw(port) as client:
                assert (await client.ask(get(f"/events{query}"))).status == 403


async def test_beyond_this_machine_a_browser_needs_tls() -> None:
    access = PageAccess.of(config("0.0.0.0:0", KEYS, enabled=True), Keys())
    assert await statuses(access, basic(f"ALICE:{SECRET}")) == [403, 403, 403, 200]
