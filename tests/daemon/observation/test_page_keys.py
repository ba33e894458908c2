"""Keys with which a browser has signed in to the page: they open it, and reach no function."""

from __future__ import annotations

import base64
import json

import pytest

from tests.daemon.running import RunningDaemon
from tests.support.cases import case

pytestmark = pytest.mark.root
SECRET = "0123456789abcdef"
APP = """
import json
def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(environ.get("HTTP_AUTHORIZATION")).encode()]
"""


@pytest.fixture(scope="module")
def config() -> str:
    return f'[page]\nask_for_key = true\n[lambda_api.keys]\nALICE = "{SECRET}"\n[function_urls]\nenabled = true\n'


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


def made(daemon: RunningDaemon, name: str, *rights: str) -> str:
    """The text of a new key."""
    answer = daemon.manage("POST", "/keys", json.dumps({"name": name, "may": rights, "functions": []}))
    assert answer.status == 200, answer
    return str(answer.json["key"])


def test_a_key_opens_the_page_while_it_is_one(daemon: RunningDaemon) -> None:
    credentials = {"Authorization": basic(f"bob:{made(daemon, 'bob', 'read')}"), "Sec-Fetch-Dest": "document"}
    assert daemon.request("GET", "/").status == 401
    assert daemon.request("GET", "/", headers=credentials).status == 200
    assert daemon.manage("DELETE", "/keys/bob").status == 200
    assert daemon.request("GET", "/", headers=credentials).status == 401


@case(
    "K26",
    "a web app is called by a browser that has signed in to the page, and sends its key to every path of the host",
    expect="the app gets no key of the worker; a password of its own it does get",
)
def test_no_key_of_the_page_reaches_a_function(daemon: RunningDaemon) -> None:
    daemon.deploy("app", {"app.py": APP})
    url = daemon.manage("PUT", "/functions/app/url", json.dumps({"auth": "NONE"})).json
    paths = ("/run/app/", f"/url/{url['id']}/")
    for key in (f"ALICE:{SECRET}", f"any:{made(daemon, 'carol', 'deploy')}"):
        for path in paths:
            assert daemon.request("GET", path, headers={"Authorization": basic(key)}).json is None, path
    own = basic("visitor:password")
    assert [daemon.request("GET", path, headers={"Authorization": own}).json for path in paths] == [own] * 2
