"""Sandboxes that say anything on their channel: their client gets an error with a name, and everybody else notices nothing.

The handler writes frames itself, with the number of the request that it is asked: what the daemon makes of their bodies
(failures, imports, times) goes into answers, traces, metrics and the Zygote tree, which must all be readable afterwards.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sockd_zygote.protocol import CHUNK, FAILED, GONE, HEAD, MODULES, PRIMED, READY, RESULT, TIMES
from tests.daemon.running import RunningDaemon
from tests.fuzz.fuzzing import encoded, fuzz, objects, texts, values
from tests.support.ledger import Entry, Ledger

pytestmark = pytest.mark.root

HANDLER = """
import os, sys

def handler(event, context):
    frame = sys._getframe()
    while "number" not in frame.f_locals:
        frame = frame.f_back
    number = frame.f_locals["number"]
    for kind, flags, length, which, body in event["frames"]:
        body = bytes.fromhex(body)
        length = len(body) if length is None else length
        head = length.to_bytes(4, "little") + bytes((kind, flags, 0, 0)) + (number + which).to_bytes(8, "little")
        os.write(3, head + body)
    return "plain"
"""
PAGES = ("/status", "/traces", "/tree", "/packages", "/functions", "/functions/hostile/logs")


class LedgerBesideDaemon(Ledger):
    """As everywhere, but what a daemon that outlives the test has started is that daemon's own."""

    def survivors(self) -> list[Entry]:
        theirs = {str(pid) for daemon in RunningDaemon.living for pid in daemon.pids()}
        return [entry for entry in super().survivors() if entry.kind != "process" or entry.key not in theirs]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    daemon = RunningDaemon.start(tmp_path_factory.mktemp("daemon") / "state", "[zygote]\nspares = 1\n")
    try:
        daemon.deploy("good", "def f(event): return event")
        daemon.deploy("hostile", {"f.py": HANDLER}, handler="f:handler", timeout_s=1)
        yield daemon
        assert daemon.terminate() == 0, daemon.lines
        assert not any("Traceback" in line for line in daemon.lines), "\n".join(daemon.lines)
    finally:
        daemon.close()


@pytest.fixture(autouse=True)
def ledger(daemon: RunningDaemon) -> Iterator[Ledger]:
    """The count before and after each test, the daemon there already."""
    ledger = LedgerBesideDaemon()
    yield ledger
    ledger.check()


Frame = tuple[int, int, int | None, int, str]
"""Kind, flags, length (None: the true one), number beyond the request's, body in hex."""
moments = st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), 10**18]) | st.integers(-(2**63), 2**63 - 1)
times = st.builds(TIMES.pack, moments, moments)
failures = objects(errorType=texts(), errorMessage=texts(), stackTrace=st.lists(texts(), max_size=2)) | values()
imports = st.lists(st.tuples(texts(), texts(), st.floats()), max_size=3) | values()
bodies = {
    RESULT: st.tuples(times, values().map(encoded) | st.binary(max_size=20)).map(b"".join),
    FAILED: st.tuples(times, failures.map(encoded) | st.binary(max_size=20)).map(b"".join),
    MODULES: imports.map(encoded) | st.binary(max_size=20),
    READY: times | st.binary(max_size=20),
    PRIMED: st.just(b"") | st.binary(max_size=20),
}


def framed(kind: int, body: bytes, flags: int = 0, length: int | None = None, which: int = 0) -> Frame:
    return (kind, flags, length, which, body.hex())


likely = st.sampled_from(sorted(bodies)).flatmap(lambda kind: bodies[kind].map(lambda body: framed(kind, body)))
wild = st.builds(
    framed,
    st.integers(0, 255),
    st.binary(max_size=40),
    st.sampled_from([0, 0, 1, 255]),
    st.none() | st.sampled_from([0, 1, 2**31, 2**32 - 1]),
    st.sampled_from([0, 0, 1, 1000]),
)
NOW = TIMES.pack(2**63 - 1, -(2**63))
SOME = struct.pack("<qq", 1, 2)


def failed(**fields: Any) -> Frame:
    return framed(FAILED, SOME + encoded({"errorType": "E", "errorMessage": "m", "stackTrace": []} | fields))


@fuzz(60)
@example([failed(errorType="\ud800", errorMessage="\udfff", stackTrace=["\udcff"])])
@example([failed(errorType="InvalidRequestContentException")])
@example([framed(FAILED, SOME + b"[" * 50_000)])
@example([framed(RESULT, NOW + b"{}")])
@example([framed(RESULT, SOME + b"\xff\0 not JSON\r\n\r\n")])
@example([framed(RESULT, b"short")])
@example([framed(MODULES, b'[["k", "m", NaN], ["\\ud800", "m", 1]]'), framed(RESULT, SOME + b"{}")])
@example([framed(MODULES, b"[" * 50_000)])
@example([framed(RESULT, SOME + b"1"), framed(RESULT, SOME + b"2"), framed(PRIMED, b"")])
@given(st.lists(likely | likely | wild, max_size=3))
def test_whatever_a_sandbox_says_its_client_is_answered_and_no_one_else_notices(
    daemon: RunningDaemon, frames: list[Frame]
) -> None:
    answer = daemon.run("hostile", {"frames": frames})
    assert answer.status in (200, 400, 500, 502, 503, 504), answer
    if answer.status != 200:
        assert set(answer.json) >= {"errorType", "errorMessage", "requestId"}
    assert daemon.call("good", 7) == 7
    for page in PAGES:
        reported = daemon.manage("GET", page)
        assert reported.status == 200, (page, reported)
        json.loads(reported.body)
    assert daemon.request("GET", "/metrics").status == 200
    trace = daemon.manage("GET", f"/traces/{answer.headers['x-amzn-requestid']}")
    assert trace.status == 200, trace


statuses = st.sampled_from([200, 204, 304, 418, 599]) | st.integers(-1, 700) | values()
headers = st.lists(st.tuples(texts(), texts()), max_size=3) | values()
likely_names = st.sampled_from(["content-length", "Transfer-Encoding", "connection", "a", "x-sockd-cold"])
likely_headers = st.lists(
    st.tuples(likely_names, st.sampled_from(["0", "3", "999", "chunked", "close", ""])), max_size=3
)
heads = st.tuples(statuses, headers | likely_headers).map(encoded) | st.binary(max_size=20)
streamed = {
    HEAD: heads,
    CHUNK: st.binary(max_size=20) | st.just(bytes(70_000)),
    RESULT: bodies[RESULT] | times,
    FAILED: bodies[FAILED],
    MODULES: bodies[MODULES],
    GONE: st.just(b""),
}
likely_pieces = st.sampled_from([HEAD, CHUNK, CHUNK, RESULT, FAILED, MODULES, GONE]).flatmap(
    lambda kind: streamed[kind].map(lambda body: framed(kind, body))
)
LINE = re.compile(rb"[!-9;-~]+: [ -~\x80-\xff\t]*")
OK = framed(HEAD, b'[200,[["a","b"]]]')


def reported(daemon: RunningDaemon, name: str, event: Any) -> bytes:
    """All that a client is sent on a connection of its own."""
    body = json.dumps(event).encode()
    head = f"POST /run/{name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=20) as connection:
        connection.sendall(head.encode() + body)
        answer = b""
        while data := connection.recv(1 << 16):
            answer += data
    return answer


@fuzz(60)
@example([OK, framed(CHUNK, b"x"), framed(RESULT, SOME)])
@example([OK, OK])
@example([framed(CHUNK, b"x")])
@example([OK, framed(CHUNK, b"")])
@example([OK, framed(CHUNK, b""), failed()])
@example([OK, framed(CHUNK, b""), framed(CHUNK, b"x"), framed(RESULT, SOME)])
@example([OK, framed(CHUNK, bytes(65537))])
@example([OK, framed(CHUNK, b"x"), framed(RESULT, SOME + b"more")])
@example([OK, framed(CHUNK, b"x"), failed()])
@example([OK, framed(HEAD, b"[200,[]]", which=1)])
@example([framed(HEAD, b'[200,[["a","b\\r\\nc: d"]]]')])
@example([framed(HEAD, b"[" * 50_000)])
@example([framed(HEAD, b'[200,[["a","' + b"x" * 70_000 + b'"]]]')])
@given(st.lists(likely_pieces, max_size=5))
def test_whatever_a_sandbox_streams_its_client_sees_http_and_no_one_else_notices(
    daemon: RunningDaemon, frames: list[Frame]
) -> None:
    answer = reported(daemon, "hostile", {"frames": frames})
    first, *lines = answer.partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert re.fullmatch(rb"HTTP/1\.1 [2-5]\d\d [ -~]*", first), answer
    assert all(LINE.fullmatch(line) for line in lines), answer
    names = [line.partition(b":")[0] for line in lines]
    for once in (b"content-length", b"transfer-encoding", b"connection", b"x-amzn-requestid", b"x-sockd-cold"):
        assert names.count(once) <= 1
    assert not {b"content-length", b"transfer-encoding"} <= set(names)
    assert daemon.call("good", 7) == 7


def test_the_type_of_an_error_is_kept_no_longer_than_others(daemon: RunningDaemon) -> None:
    daemon.run("hostile", {"frames": [failed(errorType="E" * 5000)]})
    assert max(len(trace["outcome"]) for trace in daemon.manage("GET", "/traces?limit=1000").json) <= 200


def test_a_handler_does_speak_for_its_sandbox(daemon: RunningDaemon) -> None:
    # Each in a sandbox of its own: the handler server's own answer comes after the forged one, and ends the sandbox.
    daemon.deploy("speaks", {"f.py": HANDLER}, handler="f:handler")
    assert daemon.run("speaks", {"frames": [framed(RESULT, SOME + b'"mine"')]}).json == "mine"
    daemon.deploy("speaks", {"f.py": HANDLER + "\n"}, handler="f:handler")
    answer = daemon.run("speaks", {"frames": [failed(errorType="Mine", errorMessage="no")]})
    assert (answer.status, answer.json["errorType"], answer.json["errorMessage"]) == (500, "Mine", "no")
    daemon.deploy("speaks", {"f.py": HANDLER + "\n\n"}, handler="f:handler")
    assert daemon.run("speaks", {"frames": [framed(99, b"")]}).status == 502
    assert daemon.run("speaks", {"frames": []}).json == "plain"
    daemon.remove("speaks")
