"""What callers of a real daemon get of a function's exception where `http.errors` is "id"."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator

import pytest

from tests.daemon.running import Answer, RunningDaemon

pytestmark = pytest.mark.root
RAISES = "def f(event):\n    secret = 'a line of source'\n    raise KeyError(secret)\n"


@pytest.fixture(scope="module")
def hiding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    daemon = RunningDaemon.start(tmp_path_factory.mktemp("hiding") / "state", '[http]\nerrors = "id"\n')
    yield daemon
    daemon.close()


def is_hidden(answer: Answer) -> bool:
    error = answer.json
    assert error["requestId"] == answer.headers["x-amzn-requestid"] and answer.status >= 500
    return set(error) == {"errorType", "errorMessage", "requestId", "stackTrace"} and (
        (error["errorType"], error["stackTrace"]) == ("FunctionError", []) and b"source" not in answer.body
    )


@pytest.mark.parametrize(
    "code",
    [
        RAISES,
        "raise ValueError('a line of source')",
        "def f(event):\n    yield b'x'[:0]\n    raise KeyError('source')\n",
    ],
    ids=["handler", "import", "generator"],
)
def test_an_exception_is_reported_by_its_id_and_is_in_the_log(hiding: RunningDaemon, code: str) -> None:
    hiding.deploy("raises", code, timeout_s=5)
    for headers in ({}, {"X-Sockd-Fresh": "1"}, {"Idempotency-Key": "k"}):
        answer = hiding.request("POST", "/run/raises", b"{}", headers)
        assert is_hidden(answer), answer
        assert "source" in hiding.log_of("raises", answer)


def test_managers_learn_all_over_run_sock(hiding: RunningDaemon) -> None:
    hiding.deploy("raises", RAISES)
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(hiding.state / "run.sock"))
    connection.request("POST", "/run/raises", b"{}")
    error = json.loads(connection.getresponse().read())
    connection.close()
    assert error["errorType"] == "KeyError" and "raise KeyError(secret)" in "".join(error["stackTrace"])


def test_a_function_says_for_itself_what_is_reported(hiding: RunningDaemon) -> None:
    hiding.deploy("open", RAISES, errors="full")
    assert hiding.run("open").json["errorType"] == "KeyError"
    hiding.deploy("open", RAISES)
    assert is_hidden(hiding.run("open"))


def test_errors_of_the_worker_are_reported(hiding: RunningDaemon) -> None:
    hiding.deploy("slow", "import select\ndef f(event): select.poll().poll()", timeout_s=1)
    assert hiding.run("slow").json["errorType"] == "Sandbox.Timedout"
    assert hiding.run("unknown").status == 404
