"""Changes from the page: who may make them, what a token is for, and what is changed."""

from __future__ import annotations

import base64
import pwd
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest

from sockd.base.config import Config, HttpConfig, LambdaApiConfig, PageConfig
from sockd.http.access.callers import Callers
from sockd.http.access.keys import Keys, Right
from sockd.http.access.managers import Managers
from sockd.http.front import Front
from sockd.http.page import access as access_module
from sockd.http.page.access import PageAccess
from sockd.http.page.page import Page
from sockd.http.server.listening.sockets import bind_tcp
from sockd.http.server.server import HttpServer
from tests.http.page.conftest import SANDBOX_UIDS
from tests.http.page.fake_page_worker import REQUEST_ID, FakePageSources, FakePageWorker
from tests.http.page.test_sent_event import FORM, KEYS, OURS, SANDBOXED, token_of
from tests.http.raw import Raw, Reply, get, post, raw

pytestmark = pytest.mark.anyio
SETTINGS = "/functions/echo?tab=settings"
ROLLBACK, DISABLE, ENABLE = (f"/functions/echo/{action}" for action in ("rollback", "disable", "enable"))
RETRY = f"/queue/{REQUEST_ID}/retry"
BUTTONS = ((SETTINGS, ROLLBACK), (SETTINGS, DISABLE), ("/queue", RETRY), (f"/queue/{REQUEST_ID}", RETRY))
"""Each with the page on which it is."""
NOBODY = pwd.getpwnam("nobody")


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the browser root's, whichever user runs the tests."""
    monkeypatch.setattr(access_module, "owner", lambda *ends: 0)


async def button(client: Raw, page: str, action: str, *headers: str) -> str:
    """The token of a button; empty: the page has no such button."""
    html = (await client.ask(get(page, *headers))).body.decode()
    found = re.search(
        rf'<form action="{action}" method="post"[^>]*><input type="hidden" name="token" value="(\w+)">', html
    )
    return found[1] if found else ""


async def press(client: Raw, action: str, token: str, *headers: str) -> Reply:
    return await client.ask(post(action, urlencode({"token": token}).encode(), FORM, *headers))


@pytest.mark.parametrize("headers", [OURS, SANDBOXED, ("Origin: http://localhost",)])
async def test_its_buttons_change_what_they_say(
    port: int, worker: FakePageWorker, sources: FakePageSources, headers: tuple[str, ...]
) -> None:
    async with raw(port) as client:
        for page, action in BUTTONS:
            reply = await press(client, action, await button(client, page, action), *headers)
            assert reply.status == 200 and reply.headers["cache-control"] == "no-store"
        assert b"disabled</span>" in (await client.ask(get(SETTINGS))).body
        assert not await button(client, SETTINGS, DISABLE)
        reply = await press(client, ENABLE, await button(client, SETTINGS, ENABLE), *headers)
        assert b"It serves 10 requests at once." in reply.body
    assert worker.changed == [("disable", "echo"), ("enable", "echo")]
    assert sources.changed == [("rollback", "echo"), ("retry", REQUEST_ID), ("retry", REQUEST_ID)]


async def test_a_rollback_says_which_code_is_deployed(port: int) -> None:
    async with raw(port) as client:
        page = (await client.ask(get(SETTINGS))).body
        reply = await press(client, ROLLBACK, await button(client, SETTINGS, ROLLBACK), *OURS)
    assert b"Roll back to deploy 4" in page and b"cdcdcdcdcdcd" in page
    assert b"Deploy 6 has the code cdcdcdcdcdcd of deploy 4." in reply.body


async def test_a_page_that_was_loaded_before_another_deploy_undoes_nothing(port: int, sources: FakePageSources) -> None:
    async with raw(port) as client:
        token = await button(client, SETTINGS, ROLLBACK)
        sources.latest += 1
        reply = await press(client, ROLLBACK, token, *OURS)
        assert reply.status == 403 and b"changed meanwhile: reload" in reply.body
        again = await press(client, ROLLBACK, await button(client, SETTINGS, ROLLBACK), *OURS)
        assert again.status == 200
    assert len(sources.changed) == 1


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("Sec-Fetch-Dest: document", "Sec-Fetch-Site: cross-site", "Origin: http://evil.example"),
        ("Sec-Fetch-Dest: document", "Sec-Fetch-Site: same-site", "Origin: http://ab.lambda-url.localhost"),
        ("Sec-Fetch-Dest: document", "Sec-Fetch-Site: none"),
        ("Sec-Fetch-Dest: empty", "Sec-Fetch-Site: same-origin", "Origin: http://localhost"),
        ("Sec-Fetch-Dest: iframe", "Sec-Fetch-Site: same-origin", "Origin: http://localhost"),
        ("Origin: http://evil.example",),
        (*OURS, "X-Forwarded-For: 192.0.2.7"),
    ],
)
async def test_no_other_page_does_even_with_the_token(
    port: int, worker: FakePageWorker, sources: FakePageSources, headers: tuple[str, ...]
) -> None:
    async with raw(port) as client:
        for page, action in BUTTONS:
            assert (await press(client, action, await button(client, page, action), *headers)).status == 403
    assert worker.changed == sources.changed == []


async def test_a_token_is_for_one_change_of_one_thing(
    port: int, worker: FakePageWorker, sources: FakePageSources, page: Page
) -> None:
    async with raw(port) as client:
        tokens = {action: await button(client, where, action) for where, action in BUTTONS}
        others = [await button(client, "/functions/thumbnails?tab=settings", "/functions/thumbnails/disable")]
        others += ["", "0" * 64, "ä", page._access.token, await token_of(client)]
        for action in tokens:
            for token in (*others, *(token for other, token in tokens.items() if other != action)):
                assert (await press(client, action, token, *OURS)).status == 403
        assert (await press(client, ENABLE, tokens[DISABLE], *OURS)).status == 403
        assert (await client.ask(get(DISABLE))).status == 405
    assert worker.changed == sources.changed == []


@pytest.mark.parametrize("uid", [NOBODY.pw_uid, 54321])
async def test_a_token_without_the_right_to_manage_has_no_button_and_changes_nothing(
    port: int, worker: FakePageWorker, sources: FakePageSources, monkeypatch: pytest.MonkeyPatch, uid: int
) -> None:
    async with raw(port) as client:
        tokens = {action: await button(client, page, action) for page, action in BUTTONS}
        monkeypatch.setattr(access_module, "owner", lambda *ends: uid)
        for page, action in BUTTONS:
            assert not await button(client, page, action)
            reply = await press(client, action, tokens[action], *OURS)
            assert reply.status == 403 and b"management.group" in reply.body
        assert b"sockd rollback echo" in (await client.ask(get(SETTINGS))).body
        assert b"sockd events retry" in (await client.ask(get(f"/queue/{REQUEST_ID}"))).body
        monkeypatch.setattr(access_module, "owner", lambda *ends: SANDBOX_UIDS)
        assert (await press(client, DISABLE, tokens[DISABLE], *OURS)).status == 403
    assert worker.changed == sources.changed == []


@asynccontextmanager
async def serving(access: PageAccess | None, worker: FakePageWorker) -> AsyncIterator[int]:
    assert access is not None
    config = HttpConfig(listen="127.0.0.1:0")
    page = Page(worker, FakePageSources(), access, Callers(config), viewers=1)
    server = HttpServer(Front(worker, config, site=page), bind_tcp("127.0.0.1:0"))
    await server.start()
    yield server.port
    await server.aclose(0)


async def test_members_of_the_group_that_manages_may_make_changes(
    worker: FakePageWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_module, "owner", lambda *ends: NOBODY.pw_uid)
    for gid, may in ((NOBODY.pw_gid, True), (NOBODY.pw_gid + 1, False)):
        access = PageAccess(None, base_uid=SANDBOX_UIDS, managers=Managers("group", gid))
        async with serving(access, worker) as port, raw(port) as client:
            token = await button(client, SETTINGS, DISABLE)
            assert bool(token) == may
            assert (await press(client, DISABLE, token, *OURS)).status == (200 if may else 403)
        worker.disabled.clear()
    assert worker.changed == [("disable", "echo")]


@pytest.mark.parametrize("is_served", [True, False])
async def test_a_key_makes_changes_where_it_may_deploy(worker: FakePageWorker, is_served: bool) -> None:
    aws = LambdaApiConfig(keys=KEYS.keys, enabled=is_served)
    http = HttpConfig(listen="127.0.0.1:0")
    asking = PageAccess.of(Config(http=http, lambda_api=aws, page=PageConfig(ask_for_key=True)), Keys())
    key = ("Authorization: Basic QUxJQ0U6MDEyMzQ1Njc4OWFiY2RlZg==", "Sec-Fetch-Dest: document")
    async with serving(asking, worker) as port, raw(port) as client:
        token = await button(client, SETTINGS, DISABLE, *key)
        assert bool(token) == is_served
        assert (await press(client, DISABLE, token, *OURS)).status == 401
        assert (await press(client, DISABLE, token, *OURS, key[0])).status == (200 if is_served else 403)
    assert worker.changed == ([("disable", "echo")] if is_served else [])


@pytest.mark.parametrize("rights", [["read"], ["read", "invoke"], ["read", "deploy"]])
async def test_a_key_of_the_worker_makes_changes_if_it_may_deploy(
    worker: FakePageWorker, tmp_path: Path, rights: list[Right]
) -> None:
    keys = Keys.open(tmp_path / "keys.json")
    text = await keys.add("alice", rights)
    http = HttpConfig(listen="127.0.0.1:0")
    asking = PageAccess.of(Config(http=http, page=PageConfig(ask_for_key=True)), keys)
    assert asking is not None
    key = f"Authorization: Basic {base64.b64encode(f':{text}'.encode()).decode()}"
    may = "deploy" in rights
    async with serving(asking, worker) as port, raw(port) as client:
        assert bool(await button(client, SETTINGS, DISABLE, key, OURS[0])) == may
        token = asking.change_token("disable", "echo")
        assert (await press(client, DISABLE, token, *OURS, key)).status == (200 if may else 403)
    assert worker.changed == ([("disable", "echo")] if may else [])


async def test_what_is_live_has_no_token_as_everybody_who_may_look_gets_it(port: int, page: Page) -> None:
    async with raw(port) as client:
        for path in ("/", "/functions/echo?tab=log"):
            html = (await client.ask(get(path))).body.decode()
            assert 'name="token"' not in html
    for board in (page._index, page._board("echo", "overview"), page._board("echo", "log")):
        assert all("token" not in fragment.html for fragment in (await board.refresh()).values())


async def test_what_is_not_there_is_not_changed(port: int, page: Page) -> None:
    async with raw(port) as client:
        for action, target, state in (
            ("disable", "/functions/none/disable", "none"),
            ("retry", "/queue/none/retry", "none"),
        ):
            token = page._access.change_token(action, state)
            assert (await press(client, target, token, *OURS)).status == 404
        assert not await button(client, "/functions/new?tab=settings", "/functions/new/rollback")


async def test_a_form_that_is_none_is_refused(port: int, worker: FakePageWorker) -> None:
    async with raw(port) as client:
        token = await button(client, SETTINGS, DISABLE)
        assert (await client.ask(post(DISABLE, b"{}", *OURS, "Content-Type: application/json"))).status == 400
        assert (await press(client, DISABLE, token + "x" * 5000, *OURS)).status == 413
    assert worker.changed == []
