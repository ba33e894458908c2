"""Services in a group: each worker runs one that is kept, and goes on with it when another worker dies."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from pathlib import Path

import pytest

from tests.daemon.groups.workers import DRAIN_NOTICE_S, Workers, front
from tests.daemon.services.test_services import files, get, row, wait_state
from tests.daemon.test_events import soon

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]


@pytest.fixture
def drain_notice_s() -> float:
    return DRAIN_NOTICE_S


def test_each_worker_runs_a_kept_service_whichever_other_one_dies(workers: Workers, tmp_path: Path) -> None:
    for name in ("w1", "w2", "w3"):
        workers.start(name)
    workers.deploy("kept", files("min = 1\n"))
    for daemon in workers.by_name.values():
        wait_state(daemon, "kept", "running")
    tokens = {name: get(daemon, "kept/")["token"] for name, daemon in workers.by_name.items()}
    assert len(set(tokens.values())) == len(tokens)
    with front(workers.addresses, tmp_path) as port:
        home, token = through(port)
        assert token == tokens.pop(home)
        workers.kill(home)
        assert through(port) in tokens.items()
    assert {name: get(daemon, "kept/")["token"] for name, daemon in workers.by_name.items()} == tokens
    again = workers.start(home)
    wait_state(again, "kept", "running")
    assert get(again, "kept/")["token"] not in (token, *tokens.values())
    joined = workers.start("w4")
    soon(lambda: [each["state"] for each in joined.manage("GET", "/services").json] == ["running"])
    assert {row(daemon, "kept")["starts"] for daemon in workers.by_name.values()} == {1}


def through(port: int) -> tuple[str, str]:
    """Ask the service through the proxy; return the worker that answers, and the program's token."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/run/kept/")
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return str(answer.headers["x-sockd-worker"]), str(json.loads(body)["token"])
