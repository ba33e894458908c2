"""Generators and functions that are no apps, over `/run`: what of a request reaches them, and what they refuse."""

from __future__ import annotations

import json

import pytest

from tests.daemon.running import RunningDaemon

pytestmark = pytest.mark.root


GENERATES = """
import asyncio
def f(event):
    return {"sync": sync, "async": asynchronous, "sse": sse, "empty": lambda: iter(())}[event]()
def sync():
    yield {"n": 1}
    yield b"raw"
    yield "text"
async def asynchronous():
    yield "a"
    await asyncio.sleep(0)
    yield "b"
def sse():
    yield {"statusCode": 202, "headers": {"content-type": "text/event-stream"}, "cookies": ["a=1"]}
    yield "data: 1\\n\\n"
"""


@pytest.mark.parametrize(
    ("event", "status", "content_type", "body"),
    [
        ("sync", 200, "application/x-ndjson", b'{"n":1}\nrawtext'),
        ("async", 200, "text/plain; charset=utf-8", b"ab"),
        ("sse", 202, "text/event-stream", b"data: 1\n\n"),
        ("empty", 200, "application/octet-stream", b""),
    ],
)
def test_what_a_generator_yields_is_streamed_and_joined_for_aws_s_clients(
    daemon: RunningDaemon, event: str, status: int, content_type: str, body: bytes
) -> None:
    daemon.deploy("generates", GENERATES)
    answer = daemon.run("generates", event)
    assert (answer.status, answer.headers["content-type"], answer.body) == (status, content_type, body)
    joined = daemon.request("POST", "/2015-03-31/functions/generates/invocations", json.dumps(event).encode())
    assert (joined.status, joined.body) == (200, body)


def test_a_plain_function_ignores_its_path_and_takes_get_and_post(daemon: RunningDaemon) -> None:
    daemon.deploy("plain", "def f(event): return event")
    assert daemon.request("GET", "/run/plain/some/path?").json == {}
    assert daemon.request("POST", "/run/plain/path", b"[1]").json == [1]
    refused = daemon.request("DELETE", "/run/plain")
    assert (refused.status, refused.headers["allow"]) == (405, "GET, POST")


def test_a_query_that_a_plain_function_would_not_see_is_refused(daemon: RunningDaemon) -> None:
    daemon.deploy("asked", "def f(event): return event")
    for _ in range(2):  # before and after it is known that the function is no app
        refused = daemon.request("GET", "/run/asked?q=1")
        assert (refused.status, refused.json["errorType"]) == (400, "InvalidRequestException")
        assert "queryStringParameters" in refused.json["errorMessage"]
        assert daemon.request("POST", "/run/asked", b'{"q": 1}').json == {"q": 1}
    later = daemon.request("POST", "/run/asked?q=1", b"{}", {"X-Amz-Invocation-Type": "Event"})
    assert (later.status, daemon.manage("GET", "/events").json) == (400, [])


def test_the_first_request_of_a_function_may_be_one_that_it_refuses(daemon: RunningDaemon) -> None:
    daemon.deploy("refuses", "def f(event): return event")
    assert daemon.request("PUT", "/run/refuses").status == 405
    assert daemon.call("refuses", 1) == 1


def test_details_reach_the_context(daemon: RunningDaemon) -> None:
    source = "def f(event, context): c = context.client_context; return [c.custom, c.client.app_title, c.env]"
    daemon.deploy("detailed", source)
    context = "eyJjdXN0b20iOiB7ImEiOiAxfSwgImNsaWVudCI6IHsiYXBwX3RpdGxlIjogInQifX0="
    path, headers = "/2015-03-31/functions/detailed/invocations", {"X-Amz-Client-Context": context}
    assert daemon.request("POST", path, b"{}", headers).json == [{"a": 1}, "t", None]
    refused = daemon.request("POST", path, b"{}", {"X-Amz-Client-Context": "no"})
    assert (refused.status, refused.headers["x-amzn-errortype"]) == (400, "InvalidRequestContentException")
