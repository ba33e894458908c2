"""Test events: who may send one, what is invoked, and what is shown of it."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest

from sockd.base.config import Config, HttpConfig, LambdaApiConfig, PageConfig, RunRule
from sockd.http.access.callers import Callers
from sockd.http.access.keys import Keys
from sockd.http.front import Front
from sockd.http.page import access as access_module
from sockd.http.page import sent_event
from sockd.http.page.access import PageAccess
from sockd.http.page.page import Page
from sockd.http.server.listening.sockets import bind_tcp
from sockd.http.server.server import HttpServer
from tests.http.page.conftest import SANDBOX_UIDS
from tests.http.page.fake_page_worker import FakePageSources, FakePageWorker
from tests.http.raw import Raw, Reply, get, post, raw

pytestmark = pytest.mark.anyio

FORM = "Content-Type: application/x-www-form-urlencoded"
OURS = ("Sec-Fetch-Dest: document", "Sec-Fetch-Site: same-origin", "Origin: http://localhost")
SANDBOXED = ("Sec-Fetch-Dest: document", "Sec-Fetch-Site: cross-site", "Origin: null")
KEYS = LambdaApiConfig(keys={"ALICE": "0123456789abcdef"})


async def token_of(client: Raw, name: str = "echo", *headers: str) -> str:
    """What stands in a function's page."""
    html = (await client.ask(get(f"/functions/{name}", *headers))).body.decode()
    token = re.search(r'name="token" value="(\w{64})"', html)
    assert token
    return token[1]


async def send(client: Raw, *headers: str, name: str = "echo", **fields: str) -> Reply:
    body = urlencode({"event": "{}", **fields}).encode()
    return await client.ask(post(f"/functions/{name}/test-events", body, FORM, *headers))


@pytest.mark.parametrize("headers", [OURS, SANDBOXED, ("Origin: http://localhost",), ("Origin: null",)])
async def test_the_page_of_a_function_invokes_it(port: int, worker: FakePageWorker, headers: tuple[str, ...]) -> None:
    async with raw(port) as client:
        token = await token_of(client)
        reply = await send(client, *headers, token=token, event='{"a": "ä&=+"}\r\n')
        assert reply.status == 200 and reply.headers["cache-control"] == "no-store"
    text = reply.body.decode()
    assert worker.invoked == [("echo", '{"a": "ä&=+"}'.encode())]
    assert "<pre>plain</pre>" in text and re.search(r'href="/traces/[\w-]{36}"', text)
    assert token in text, "it can be sent again"


async def test_a_failure_shows_its_error_and_an_empty_event_is_an_object(port: int, worker: FakePageWorker) -> None:
    worker.names.add("fails")
    async with raw(port) as client:
        reply = await send(client, *OURS, name="fails", token=await token_of(client, "fails"), event=" ")
        assert reply.status == 200 and b"plain: plain\n\nplain" in reply.body
        worker.names.add("busy")
        refused = await send(client, *OURS, name="busy", token=await token_of(client, "busy"))
        assert refused.status == 429 and b"1000 waiting" in refused.body
    assert worker.invoked == [("fails", b"{}")]


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("Sec-Fetch-Dest: document", "Sec-Fetch-Site: cross-site", "Origin: http://evil.example"),
        ("Sec-Fetch-Dest: document", "Sec-Fetch-Site: same-site", "Origin: http://ab.lambda-url.localhost"),
        ("Sec-Fetch-Dest: document", "Sec-Fetch-Site: none"),
        ("Sec-Fetch-Dest: document", "Sec-Fetch-Site: same-site", "Origin: null"),
        ("Sec-Fetch-Dest: empty", "Sec-Fetch-Site: same-origin", "Origin: http://localhost"),
        ("Sec-Fetch-Dest: iframe", "Sec-Fetch-Site: same-origin", "Origin: http://localhost"),
        ("Origin: http://evil.example",),
        ("Origin: http://localhost.evil.example",),
        (*OURS, "X-Forwarded-For: 192.0.2.7"),
    ],
)
async def test_nothing_else_does_even_with_the_token(
    port: int, worker: FakePageWorker, headers: tuple[str, ...]
) -> None:
    async with raw(port) as client:
        assert (await send(client, *headers, token=await token_of(client))).status == 403
    assert worker.invoked == []


async def test_a_token_is_for_one_function_and_one_life_of_the_worker(
    port: int, worker: FakePageWorker, page: Page
) -> None:
    async with raw(port) as client:
        other = await token_of(client, "thumbnails")
        for token in ("", "0" * 64, "ä", other, page._access.token):
            for headers in (OURS, SANDBOXED):
                assert (await send(client, *headers, token=token)).status == 403
    assert worker.invoked == []


async def test_what_runs_in_sandboxes_invokes_nothing(
    port: int, worker: FakePageWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with raw(port) as client:
        token = await token_of(client)
        monkeypatch.setattr(access_module, "owner", lambda *ends: SANDBOX_UIDS)
        assert (await send(client, *OURS, token=token)).status == 403
    assert worker.invoked == []


async def test_a_form_that_is_too_large_or_none_is_refused(port: int, worker: FakePageWorker) -> None:
    path = "/functions/echo/test-events"
    async with raw(port) as client:
        token = await token_of(client)
        assert (await send(client, *OURS, token=token, event="x" * sent_event.MAX_FORM_BYTES)).status == 413
    async with raw(port) as client:
        assert (await client.ask(post(path, b"{}", *OURS, "Content-Type: application/json"))).status == 400
        assert (await client.ask(post(path, b"event=%ff&token=" + token.encode(), FORM, *OURS))).status == 400
        assert (await client.ask(post(path, b"\xff", FORM, *OURS))).status == 400
        assert (await client.ask(post(path, b"a&" * 9, FORM, *OURS))).status in (400, 403)
        assert (await client.ask(get(path))).status == 405
    assert worker.invoked == []


async def test_a_function_that_is_not_there_is_not_invoked(port: int, page: Page) -> None:
    async with raw(port) as client:
        token = page._access.test_event_token("none")
        assert (await send(client, *OURS, name="none", token=token)).status == 404


@asynccontextmanager
async def serving(
    config: Config, worker: FakePageWorker, rules: Mapping[str, RunRule] | None = None, keys: Keys | None = None
) -> AsyncIterator[int]:
    access = PageAccess.of(config, keys or Keys())
    assert access is not None
    callers = Callers(config.http, rules=rules)
    page = Page(worker, FakePageSources(), access, callers, viewers=1)
    front = Front(worker, config.http, site=page, callers=callers)
    server = HttpServer(front, bind_tcp("127.0.0.1:0"))
    await server.start()
    yield server.port
    await server.aclose(0)


@pytest.mark.parametrize("rule", ["keys", "off"])
async def test_a_page_without_a_key_does_not_invoke_a_function_that_is_closed(
    worker: FakePageWorker, rule: RunRule
) -> None:
    here = Config(http=HttpConfig(listen="127.0.0.1:0"))
    async with serving(here, worker, {"echo": rule}) as port, raw(port) as client:
        assert b"<form" not in (await client.ask(get("/functions/echo"))).body
        assert (await send(client, *OURS, token="0" * 64)).status == 403
    assert worker.invoked == []


async def test_where_run_is_closed_a_key_invokes_if_it_may(worker: FakePageWorker, tmp_path: Path) -> None:
    keys = Keys.open(tmp_path / "keys.json")
    reads, invokes = await keys.add("reads", ["read"]), await keys.add("invokes", ["read", "invoke"])
    asking = Config(http=HttpConfig(listen="127.0.0.1:0"), page=PageConfig(ask_for_key=True))
    async with serving(asking, worker, {"echo": "keys"}, keys) as port, raw(port) as client:
        shown = f"Authorization: Basic {base64.b64encode(f'name:{invokes}'.encode()).decode()}"
        token = await token_of(client, "echo", shown, OURS[0])
        other = f"Authorization: Basic {base64.b64encode(f'name:{reads}'.encode()).decode()}"
        assert b"<form" not in (await client.ask(get("/functions/echo", other, OURS[0]))).body
        refused = await send(client, *OURS, other, token=token)
        assert (refused.status, worker.invoked) == (403, [])
        assert b"a key that may invoke" in refused.body
        assert (await send(client, *OURS, shown, token=token)).status == 200
    assert worker.invoked == [("echo", b"{}")]


async def test_where_run_is_closed_a_page_without_a_key_invokes_nothing(worker: FakePageWorker) -> None:
    closed = HttpConfig(listen="127.0.0.1:0", run=False)
    async with serving(Config(http=closed), worker) as port, raw(port) as client:
        html = (await client.ask(get("/functions/echo"))).body
        assert b"<form" not in html and b"token" not in html.partition(b"data-events")[0]
        assert (await send(client, *OURS, token="0" * 64)).status == 403
    asking = Config(http=closed, lambda_api=KEYS, page=PageConfig(ask_for_key=True))
    key = "Authorization: Basic QUxJQ0U6MDEyMzQ1Njc4OWFiY2RlZg=="
    async with serving(asking, worker) as port, raw(port) as client:
        token = await token_of(client, "echo", key, "Sec-Fetch-Dest: document")
        assert (await send(client, *OURS, token=token)).status == 401
        assert worker.invoked == []
        assert (await send(client, *OURS, key, token=token)).status == 200
    assert worker.invoked == [("echo", b"{}")]
