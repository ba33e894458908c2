"""GETs of `requests` that a function makes: the same responses as without an initscript, some of them without a request."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import requests.adapters

from tests.storage_lib.conftest import Observer
from tests.storage_lib.engine_end import EngineEnd
from tests.support.web_server import BODY, HEADERS, Web, web_server


@pytest.fixture
def web() -> Iterator[Web]:
    with web_server() as server:
        yield server


@pytest.fixture
def session(storage: Any, engine: EngineEnd, web: Web, monkeypatch: pytest.MonkeyPatch) -> Iterator[requests.Session]:
    """One of a function whose initscript has fetched /a?b=c."""
    adapter = requests.adapters.HTTPAdapter
    monkeypatch.setattr(adapter, "send", adapter.send)
    from sockd_storage import web as served

    served.attend(requests.adapters, {})
    fetch(engine, web, 1, "/a?b=c")
    with requests.Session() as session:
        yield session
    sys.modules.pop("sockd_storage.web")


def fetch(engine: EngineEnd, web: Web, number: int, path: str, more: str = "", **headers: str) -> None:
    """The script has sent a GET. Args: more: lines of headers behind its method and path."""
    came = {name.lower(): value for name, value in HEADERS.items()}
    came |= {"content-length": str(len(BODY)), "date": "today", "server": "one", **headers}
    engine.message(number, BODY, f"http.GET {path}{more}", web.url, headers=came)


def reported(response: requests.Response) -> dict[str, Any]:
    headers = {name.lower(): value for name, value in response.headers.items() if name not in ("Date", "Server")}
    headers.pop("date", None), headers.pop("server", None)
    return {
        "status": (response.status_code, response.reason, response.ok),
        "url": response.url,
        "headers": headers,
        "json": response.json(),
        "encoding": response.encoding,
        "history": response.history,
    }


def test_a_get_is_the_response_that_the_network_gives(session: requests.Session, web: Web, engine: EngineEnd) -> None:
    served = reported(session.get(f"{web.url}/a", params={"b": "c"}))
    assert not web.lines
    assert reported(session.get(f"{web.url}/a?b=c")) == served
    assert len(web.lines) == 1, "each reply serves one read"
    assert [(rpc[0], how) for rpc, how in engine.reads()] == [
        ("http.GET /a?b=c", "region"),
        ("http.GET /a?b=c", "network"),
    ]


def test_a_stream_is_served_too(session: requests.Session, web: Web) -> None:
    with session.get(f"{web.url}/a?b=c", stream=True) as response:
        assert b"".join(response.iter_content(5)) == BODY
    assert not web.lines


def test_headers_that_a_script_has_sent_too_are_part_of_the_request(
    session: requests.Session, web: Web, engine: EngineEnd
) -> None:
    fetch(engine, web, 2, "/b", "\naccept: text/plain\nx-one: 1")
    session.get(f"{web.url}/b", headers={"X-One": "2", "Accept": "text/plain"})
    assert len(web.lines) == 1
    session.get(f"{web.url}/b", headers={"X-One": "1", "Accept": "text/plain"})
    assert len(web.lines) == 1


@pytest.mark.parametrize(
    "more",
    [
        {"auth": ("user", "secret")},
        {"cookies": {"a": "b"}},
        {"data": b"body"},
        {"headers": {"Authorization": "secret"}},
    ],
)
def test_a_request_that_says_more_is_sent(session: requests.Session, web: Web, more: dict[str, Any]) -> None:
    session.get(f"{web.url}/a?b=c", **more)
    session.post(f"{web.url}/a?b=c")
    assert len(web.lines) == 2


def test_a_reply_that_sets_a_cookie_is_asked_for_again(session: requests.Session, web: Web, engine: EngineEnd) -> None:
    fetch(engine, web, 2, "/c", **{"set-cookie": "a=b"})
    session.get(f"{web.url}/c")
    assert len(web.lines) == 1


@pytest.mark.parametrize("same", [True, False])
def test_after_a_write_the_engine_is_asked_first(
    session: requests.Session, web: Web, engine: EngineEnd, observer: Observer, same: bool
) -> None:
    observer.has_written = True
    engine.checked(1, same=same)
    assert session.get(f"{web.url}/a?b=c").json() == {"name": "value"}
    assert len(web.lines) == (0 if same else 1)
