"""Idempotency keys: what a name answered before its function was removed, and a first client that does not stay."""

from __future__ import annotations

import json
import socket
import time
from http.client import HTTPResponse

import pytest

from tests.daemon.gate import Gate
from tests.daemon.running import DEADLINE_S
from tests.faults.api.asking import message
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker
from tests.support.threads import in_background

pytestmark = pytest.mark.root
WAITS = "from gate import wait\ndef f(event):\n    return event if isinstance(event, dict) else wait(event)\n"
KEY = {"Idempotency-Key": "k1"}


@case(
    "K13",
    "a key is answered; the function is removed, another one deployed under its name, and the key comes again",
    expect="the new function answers, on /run and for events; none of the old one's data",
)
def test_a_key_is_bound_to_its_function(worker: PrivateWorker, happened: Happened) -> None:
    daemon = worker.daemon
    worker.deploy("shared", "def f(event): return 'secret of the first'")
    for _ in range(2):
        first = daemon.request("POST", "/run/shared", "{}", KEY)
        assert first.json == "secret of the first"
    assert first.headers["x-sockd-replayed"] == "1"
    later = {**KEY, "X-Amz-Invocation-Type": "Event"}
    accepted = daemon.request("POST", "/run/shared", "{}", later).json["requestId"]
    daemon.remove("shared")
    worker.deploy("shared", "def f(event): return 'second'")
    second = daemon.request("POST", "/run/shared", "{}", KEY)
    assert (second.status, second.json, second.headers.get("x-sockd-replayed")) == (200, "second", None)
    again = daemon.request("POST", "/run/shared", "{}", later).json["requestId"]
    happened(f"{second.json!r}, not replayed; events {accepted[:8]} and {again[:8]}")
    assert again != accepted
    worker.deploy("shared", "def f(event): return 'a newer version of the second'")
    assert daemon.request("POST", "/run/shared", "{}", KEY).json == "second"


@case(
    "K13",
    "keys are answered by a version and by an alias; both are removed, and the keys come again, on /run and as an SDK's id",
    expect="404: what is gone answers nothing",
)
def test_a_key_is_bound_to_its_version(worker: PrivateWorker, happened: Happened) -> None:
    daemon = worker.daemon
    worker.deploy("shop", "def f(event): return 'version 1'")
    assert daemon.manage("POST", "/functions/shop/versions", b"{}").status == 200
    assert daemon.manage("PUT", "/functions/shop/aliases/live", b'{"version": "1"}').status == 200
    sdk = {"amz-sdk-invocation-id": "a-call"}
    asked = [
        ("/run/shop:1", KEY),
        ("/run/shop:live", KEY),
        ("/2015-03-31/functions/shop:1/invocations", sdk),
        ("/2015-03-31/functions/shop/invocations?Qualifier=live", sdk),
    ]

    def answers() -> list[tuple[int, bool]]:
        got = [daemon.request("POST", path, "{}", headers) for path, headers in asked]
        return [(answer.status, "x-sockd-replayed" in answer.headers) for answer in got]

    assert answers() == [(200, False)] * 4
    assert answers() == [(200, True)] * 4
    assert daemon.manage("DELETE", "/functions/shop/aliases/live").status == 200
    assert daemon.manage("DELETE", "/functions/shop/versions/1").status == 200
    reported = answers()
    happened(str(reported))
    assert reported == [(404, False)] * 4


@case(
    "K13",
    "two clients wait under one key behind a full function; the first hangs up",
    expect="the second runs the request and gets its answer",
)
def test_the_second_runs_what_the_first_has_left(worker: PrivateWorker, gate: Gate, happened: Happened) -> None:
    daemon = worker.daemon
    worker.deploy("slow", {"f.py": WAITS, "gate.py": Gate.CODE}, concurrency=1, timeout_s=30)

    def queued() -> bool:
        return bool(worker.json("/live")["worker"]["queued"] == 1)

    with in_background(lambda: worker.invoke("slow", gate.port)) as blocking:
        gate.arrived()
        body = json.dumps({"n": 2}).encode()
        asked = message("POST", "/run/slow", body, KEY)
        with socket.create_connection(("127.0.0.1", daemon.port)) as first:
            first.sendall(asked)
            ends = time.monotonic() + DEADLINE_S
            while not queued():
                assert time.monotonic() < ends, "it does not wait"
            with socket.create_connection(("127.0.0.1", daemon.port), timeout=DEADLINE_S) as second:
                second.sendall(asked)
                daemon.status()
                first.close()
                daemon.status()
                gate.open()
                assert blocking().status == 200
                answer = HTTPResponse(second)
                answer.begin()
                reported = answer.status, json.loads(answer.read())
    happened(f"the second got {reported}")
    assert reported == (200, {"n": 2})
