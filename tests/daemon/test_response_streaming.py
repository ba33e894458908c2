"""Answers that come piece by piece from a real worker: by boto3's InvokeWithResponseStream and at function URLs."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest

from tests.daemon.gate import Gate
from tests.daemon.running import RunningDaemon
from tests.support.threads import in_background

pytestmark = pytest.mark.root
KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
CODE = """
import os
from gate import wait
def handler(event, context):
    what = event.get("what") or event["rawPath"].strip("/")
    gate = event.get("gate") or event.get("queryStringParameters", {}).get("gate")
    if what == "plain":
        return {"plain": event.get("x")}
    if what == "raise":
        raise KeyError("before anything")
    return globals()[what](gate and int(gate))

def pieces(gate):
    print("streaming")
    yield "one"
    wait(gate)
    yield "two"

def breaks(gate):
    yield "half"
    raise ValueError("midway")

def dies(gate):
    yield "half"
    wait(gate)
    os._exit(3)

def events(gate):
    yield {"statusCode": 201, "headers": {"content-type": "text/event-stream"}, "cookies": ["a=1"]}
    yield "data: 1\\n\\n"
    wait(gate)
    yield "data: 2\\n\\n"

def flood(gate):
    for number in range(400):
        yield bytes(64 * 1024)

def prelude(gate):
    yield b'{"statusCode": 203, "headers": {"content-type": "text/html"}}'
    yield bytes(8)
    yield b"<p>"

def bad_prelude(gate):
    yield b'{"statusCode": 203, "headers": {"a": "b\\n"}}' + bytes(8)

def injects(gate):
    yield {"statusCode": 200, "headers": {"x": "a\\r\\nset-cookie: b=c"}}
    yield "x"
"""


@pytest.fixture(scope="module")
def config() -> str:
    return f'[lambda_api.keys]\n{KEY} = "{SECRET}"\n'


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[Any]:
    client = boto3.Session(KEY, SECRET, region_name="eu-central-1").client("lambda", endpoint_url=daemon.url)
    yield client
    client.close()


@pytest.fixture(autouse=True)
def function(daemon: RunningDaemon) -> Iterator[str]:
    daemon.deploy("f", {"handler.py": CODE, "gate.py": Gate.CODE}, timeout_s=20)
    yield "f"
    daemon.remove("f")


def invoke(client: Any, event: dict[str, Any], **options: Any) -> Iterator[tuple[str, Any]]:
    """The events, as they come: pieces, then how it ended."""
    answer = client.invoke_with_response_stream(FunctionName="f", Payload=json.dumps(event).encode(), **options)
    assert (answer["StatusCode"], answer["ExecutedVersion"]) == (200, "$LATEST")
    for event in answer["EventStream"]:
        if "PayloadChunk" in event:
            yield "chunk", event["PayloadChunk"]["Payload"]
        else:
            yield "complete", event["InvokeComplete"]


def test_boto3_reads_a_plain_answer_as_one_chunk(client: Any) -> None:
    assert list(invoke(client, {"what": "plain", "x": 1})) == [("chunk", b'{"plain":1}'), ("complete", {})]
    large = "x" * 2_000_000
    (_, chunk), _ = invoke(client, {"what": "plain", "x": large})
    assert json.loads(chunk) == {"plain": large}


def test_boto3_is_reported_errors(client: Any) -> None:
    ((kind, reported),) = invoke(client, {"what": "raise"})
    assert (kind, reported["ErrorCode"]) == ("complete", "Unhandled")
    assert json.loads(reported["ErrorDetails"])["errorMessage"] == "'before anything'"
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.invoke_with_response_stream(FunctionName="none")
    with pytest.raises(client.exceptions.RequestTooLargeException):
        client.invoke_with_response_stream(FunctionName="f", Payload=b'"' + b"x" * (6 << 20) + b'"')


def test_boto3_reads_each_piece_when_it_is_made(client: Any, gate: Gate) -> None:
    events = invoke(client, {"what": "pieces", "gate": gate.port}, LogType="Tail")
    assert next(events) == ("chunk", b"one")
    gate.arrived()  # so it has not ended
    gate.open()
    assert next(events) == ("chunk", b"two")
    ((kind, reported),) = events
    assert kind == "complete"
    assert b"streaming\n" in base64.b64decode(reported["LogResult"])


def test_what_goes_wrong_midway_is_reported_behind_what_came(client: Any, gate: Gate) -> None:
    *chunks, (_, reported) = invoke(client, {"what": "breaks"})
    assert chunks == [("chunk", b"half")]
    details = json.loads(reported["ErrorDetails"])
    assert (reported["ErrorCode"], details["errorType"], details["errorMessage"]) == (
        "Unhandled",
        "ValueError",
        "midway",
    )
    events = invoke(client, {"what": "dies", "gate": gate.port})
    assert next(events) == ("chunk", b"half")
    gate.arrived()
    gate.open()
    ((_, reported),) = events
    assert json.loads(reported["ErrorDetails"])["errorType"] == "Runtime.ExitError"
    assert list(invoke(client, {"what": "plain"}))[-1] == ("complete", {})


@contextmanager
def reading(daemon: RunningDaemon, url: dict[str, Any], path: str) -> Iterator[http.client.HTTPResponse]:
    """An answer whose head has come."""
    with closing(http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=20)) as connection:
        connection.request("GET", path, headers={"Host": urlsplit(url["url"]).netloc})
        yield connection.getresponse()


@pytest.fixture
def url(daemon: RunningDaemon, function: str) -> dict[str, Any]:
    """A URL that streams."""
    made: dict[str, Any] = daemon.manage("PUT", "/functions/f/url", b'{"mode": "RESPONSE_STREAM"}').json
    return made


def test_server_sent_events_are_read_one_by_one(daemon: RunningDaemon, url: dict[str, Any], gate: Gate) -> None:
    with reading(daemon, url, f"/events?gate={gate.port}") as response:
        assert (response.status, response.headers["content-type"]) == (201, "text/event-stream")
        assert response.headers["set-cookie"] == "a=1"
        assert response.headers["x-sockd-sandbox"]
        assert response.readline() == b"data: 1\n"
        assert response.readline() == b"\n"
        gate.arrived()
        gate.open()
        assert response.read() == b"data: 2\n\n"


def test_buffered_they_come_together(daemon: RunningDaemon, url: dict[str, Any], gate: Gate) -> None:
    daemon.manage("PUT", "/functions/f/url", b'{"mode": "BUFFERED"}')
    with in_background(
        lambda: daemon.request("GET", f"/events?gate={gate.port}", headers={"Host": urlsplit(url["url"]).netloc})
    ) as answer:
        gate.arrived()
        gate.open()
        reported = answer()
    assert (reported.status, reported.body, reported.headers["content-type"]) == (
        201,
        b"data: 1\n\ndata: 2\n\n",
        "text/event-stream",
    )
    assert "content-length" in reported.headers


def test_a_slow_reader_gets_all_of_it_and_holds_up_no_one(daemon: RunningDaemon, url: dict[str, Any]) -> None:
    with reading(daemon, url, "/flood") as response:
        first = response.read(1)
        assert daemon.request("GET", f"/url/{url['id']}/plain").json == {"plain": None}
        assert len(first + response.read()) == 400 * 64 * 1024


def test_what_breaks_midway_is_cut(daemon: RunningDaemon, url: dict[str, Any]) -> None:
    with reading(daemon, url, "/breaks") as response, pytest.raises(http.client.IncompleteRead) as caught:
        response.read()
    assert caught.value.partial == b"half"
    with reading(daemon, url, "/injects") as response:
        assert (response.status, response.read()) == (502, b"Internal Server Error")
        assert "set-cookie" not in response.headers
    with reading(daemon, url, "/raise") as response:
        assert (response.status, response.headers["x-sockd-error"]) == (502, "KeyError")


def test_what_is_kept_until_it_is_whole_has_the_limit_of_an_answer(daemon: RunningDaemon, url: dict[str, Any]) -> None:
    daemon.manage("PUT", "/functions/f/url", b'{"mode": "BUFFERED"}')
    answer = daemon.request("GET", f"/url/{url['id']}/flood")
    assert (answer.status, answer.headers["x-sockd-error"]) == (502, "Function.ResponseSizeTooLarge")
    assert daemon.request("GET", f"/url/{url['id']}/plain").json == {"plain": None}


def test_a_stream_may_bring_its_head_as_custom_runtimes_do(daemon: RunningDaemon, url: dict[str, Any]) -> None:
    answer = daemon.request("GET", f"/url/{url['id']}/prelude")
    assert (answer.status, answer.body, answer.headers["content-type"]) == (203, b"<p>", "text/html")
    answer = daemon.request("GET", f"/url/{url['id']}/bad_prelude")
    assert (answer.status, answer.headers["x-sockd-error"]) == (502, "Function.InvalidResponse")
