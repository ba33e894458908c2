"""A request that wants a new sandbox: it has one, its answer says so, and it holds no more of the worker than another request."""

from __future__ import annotations

import sys

import pytest

from tests.daemon.gate import Gate
from tests.daemon.running import REPO, RunningDaemon
from tests.support import sockd_template
from tests.support.threads import in_background

COUNTS = "count = 0\ndef f(event):\n    global count\n    count += 1\n    return count\n"


@pytest.fixture(scope="module")
def config() -> str:
    return "[sandbox]\npause_after_s = 60\n"


@pytest.fixture(autouse=True)
def empty(daemon: RunningDaemon) -> None:
    """No sandbox of an earlier test is idle."""
    for function in daemon.manage("GET", "/functions").json:
        daemon.remove(function["name"])


def idle(daemon: RunningDaemon) -> int:
    count: int = daemon.status()["sandboxes"]["idle"]
    return count


def test_it_is_new_although_one_is_idle_and_takes_its_place(daemon: RunningDaemon) -> None:
    daemon.deploy("counts", COUNTS)
    assert [daemon.call("counts") for _ in range(2)] == [1, 2]
    for _ in range(3):
        fresh = daemon.run("counts", x_sockd_fresh="1")
        assert fresh.json == 1 and fresh.headers["x-sockd-cold"] == "1"
        assert fresh.headers["server-timing"].startswith('cold;desc="asked for", ')
        assert idle(daemon) == 1
    warm = daemon.run("counts", x_sockd_fresh="0")
    assert warm.json == 2 and warm.headers["x-sockd-sandbox"] == fresh.headers["x-sockd-sandbox"]
    assert "asked for" not in warm.headers["server-timing"]


def test_the_trace_says_that_it_was_asked_for(daemon: RunningDaemon) -> None:
    daemon.deploy("traced", COUNTS)
    first, fresh = daemon.run("traced"), daemon.run("traced", x_sockd_fresh="1")
    whys = [
        daemon.manage("GET", f"/traces/{answer.headers['x-amzn-requestid']}").json["why"] for answer in (first, fresh)
    ]
    assert "first request" in whys[0] and whys[1] == "A new sandbox was asked for."


def test_it_waits_for_the_functions_concurrency_like_any_other(daemon: RunningDaemon, gate: Gate) -> None:
    code = f"from gate import wait\ndef f(event): return wait({gate.port})"
    daemon.deploy("held", {"f.py": code, "gate.py": gate.CODE}, concurrency=1, queue_depth=0, timeout_s=10)
    with in_background(lambda: daemon.run("held")) as result:
        gate.arrived()
        assert daemon.run("held", x_sockd_fresh="1").status == 429
        gate.open()
        assert result().status == 200


def test_a_web_app_is_started_anew_and_sees_the_header_as_any(daemon: RunningDaemon) -> None:
    code = """
count = 0
def app(environ, start_response):
    global count
    count += 1
    start_response("200 OK", [])
    return [f"{count} {environ.get('HTTP_X_SOCKD_FRESH')}".encode()]
"""
    daemon.deploy("app", {"app.py": code})
    assert [daemon.run("app").body for _ in range(2)] == [b"1 None", b"2 None"]
    assert daemon.run("app", x_sockd_fresh="1").body == b"1 1"


def test_the_command_asks_for_it_through_both_apis(daemon: RunningDaemon) -> None:
    daemon.deploy("counts", COUNTS)
    daemon.call("counts")
    for where in (["--url", daemon.url], ["--state-dir", str(daemon.state)]):
        command = [sys.executable, "-m", "sockd", "invoke", "counts", *where]
        outputs = [
            sockd_template.run([*command, *more], cwd=REPO) for more in ([], ["--fresh"], ["--fresh", "--async"])
        ]
        assert [int(done.stdout or 0) for done in outputs] == [2, 1, 0]
        assert outputs[2].returncode == 2 and "--fresh" in outputs[2].stderr
