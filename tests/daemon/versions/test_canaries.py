"""Canaries of aliases, by real requests: withdrawn for their errors, promoted when they hold, kept over a restart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.running import REPO, RunningDaemon
from tests.daemon.versions.numbered import until
from tests.support import sockd_template

pytestmark = pytest.mark.root

GOOD = "def f(event): return {number}\n"
BAD = "def f(event):\n    if event: raise ValueError(event)\n    return {number}\n"
APP = """
def app(environ, start_response):
    start_response("{status}", [("content-length", "0")])
    return [b""]
"""


@pytest.fixture
def name(daemon: RunningDaemon, request: pytest.FixtureRequest) -> Iterator[str]:
    """A name for a function, which is removed."""
    name = f"f{abs(hash(request.node.name)) % 10**9}"
    yield name
    daemon.remove(name)


def cli(daemon: RunningDaemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SOCKD_STATE_DIR": str(daemon.state), "NO_COLOR": "1"}
    return sockd_template.run([sys.executable, "-m", "sockd", *arguments], env=env, cwd=REPO)


def release(daemon: RunningDaemon, directory: Path, name: str, code: str, *options: str) -> str:
    """Deploy code by `sockd deploy --alias prod`; what was said."""
    directory.mkdir(exist_ok=True)
    (directory / "f.py").write_text(code)
    done = cli(daemon, "deploy", str(directory), "--name", name, "--alias", "prod", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def alias_of(daemon: RunningDaemon, name: str) -> dict[str, Any]:
    (alias,) = daemon.manage("GET", f"/functions/{name}/versions").json["aliases"]
    assert isinstance(alias, dict)
    return alias


def statuses(daemon: RunningDaemon, name: str, count: int, event: object = 0) -> Counter[int]:
    return Counter(daemon.run(f"{name}:prod", event).status for _ in range(count))


def test_a_deploy_with_errors_is_withdrawn_by_itself(daemon: RunningDaemon, name: str, tmp_path: Path) -> None:
    assert f"{name}:prod leads to version 1\n" in release(daemon, tmp_path, name, GOOD.format(number=1))
    reported = release(daemon, tmp_path, name, BAD.format(number=2), "--canary", "50", "--rollback-on-errors", "5%")
    assert f"{name}:prod leads to version 1, 50 % of the requests to 2; 2 is withdrawn if more than 5 %" in reported
    assert alias_of(daemon, name)["canary"] == {"2": 0.5}
    mark, seen = daemon.mark, Counter[int]()
    until(lambda: seen.update(statuses(daemon, name, 1, "no")) or not alias_of(daemon, name)["canary"])
    assert seen[500] == 2  # more than 5 % of the least 20 requests, however well the rest went
    daemon.wait_line(
        rf"alias prod of {name}: version 2 was withdrawn: 2 of \d+ requests failed, where \d+ % of them may", since=mark
    )
    assert statuses(daemon, name, 30, "no") == {200: 30}
    assert "alias prod: version 2 was withdrawn: 2 of" in cli(daemon, "versions", name).stdout
    assert daemon.call(name) == 2, "$LATEST is what was deployed"


def test_a_deploy_that_holds_is_promoted(daemon: RunningDaemon, name: str, tmp_path: Path) -> None:
    release(daemon, tmp_path, name, GOOD.format(number=1))
    guard = "--rollback-on-errors", "5%", "--promote-after", "1s", "--least-requests", "10"
    release(daemon, tmp_path, name, BAD.format(number=2), "--canary", "50%", *guard)
    mark = daemon.mark
    until(lambda: statuses(daemon, name, 1) and alias_of(daemon, name)["version"] == "2")
    alias = alias_of(daemon, name)
    assert alias["canary"] == {} and alias["guard"] is None
    daemon.wait_line(rf"alias prod of {name}: version 2 was promoted: 0 of \d\d+ requests failed", since=mark)
    assert {daemon.call(f"{name}:prod", 0) for _ in range(20)} == {2}


def test_what_the_code_is_not_to_blame_for_is_no_failure(daemon: RunningDaemon, name: str, tmp_path: Path) -> None:
    release(daemon, tmp_path, name, GOOD.format(number=1))
    release(daemon, tmp_path, name, GOOD.format(number=2), "--canary", "99%", "--rollback-on-errors", "0%")
    assert cli(daemon, "config", name, "--concurrency", "0").returncode == 0
    assert statuses(daemon, name, 10) == {429: 10}
    assert cli(daemon, "config", name, "--concurrency", "2").returncode == 0
    assert statuses(daemon, name, 10) == {200: 10}
    assert alias_of(daemon, name)["guard"]["failed"] == 0


@pytest.mark.parametrize(("status", "stays"), [("503 Unavailable", False), ("404 Not Found", True)])
def test_a_web_app_s_own_500_is_a_failure(
    daemon: RunningDaemon, name: str, tmp_path: Path, status: str, stays: bool
) -> None:
    release(daemon, tmp_path, name, APP.format(status="200 OK"), "--handler", "f:app")
    guard = "--canary", "90%", "--rollback-on-errors", "0%"
    release(daemon, tmp_path, name, APP.format(status=status), "--handler", "f:app", *guard)
    seen = statuses(daemon, name, 40)
    failures = seen.total() - seen[200]
    assert failures > 20 if stays else 1 <= failures <= 3  # the client has an app's answer before it is counted
    assert bool(alias_of(daemon, name)["canary"]) is stays


def test_a_canary_is_guarded_after_a_restart(tmp_path: Path) -> None:
    state = tmp_path / "state"
    daemon = RunningDaemon.start(state)
    try:
        release(daemon, tmp_path / "f", "f", GOOD.format(number=1))
        guard = "--canary", "60%", "--rollback-on-errors", "10%", "--least-requests", "5"
        release(daemon, tmp_path / "f", "f", BAD.format(number=2), *guard)
        before = alias_of(daemon, "f")
        daemon.kill()
        daemon.end_reading()
        daemon = RunningDaemon.start(state)
        after = alias_of(daemon, "f")
        assert after == before and after["guard"]["most_errors"] == 0.1 and after["guard"]["since_s"] > 0
        until(lambda: statuses(daemon, "f", 1, "no") and not alias_of(daemon, "f")["canary"])
        daemon.kill()
        daemon.end_reading()
        daemon = RunningDaemon.start(state)
        assert alias_of(daemon, "f")["outcome"].startswith("version 2 was withdrawn: 1 of")
        assert statuses(daemon, "f", 10, "no") == {200: 10}
    finally:
        daemon.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--canary", "10%"], "--canary needs an alias"),
        (["--alias", "prod", "--rollback-on-errors", "5%"], "add --canary 10%"),
        (["--alias", "prod", "--canary", "100%"], "is not a share such as 10%"),
        (["--alias", "prod", "--canary", "5%", "--promote-after", "1h"], "add --rollback-on-errors 5%"),
        (["--alias", "prod", "--canary", "5%", "--rollback-on-errors", "x"], "--rollback-on-errors 'x' is not a share"),
        (["--alias", "prod", "--canary", "5%", "--rollback-on-errors", "1%", "--promote-after", "soon"], "no duration"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_deployed(
    daemon: RunningDaemon, tmp_path: Path, options: list[str], words: str
) -> None:
    (tmp_path / "f.py").write_text(GOOD.format(number=1))
    done = cli(daemon, "deploy", str(tmp_path), "--name", "never", *options)
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert daemon.manage("GET", "/functions/never").status == 404


def test_an_alias_of_the_last_deploy_can_have_no_canary(daemon: RunningDaemon, name: str, tmp_path: Path) -> None:
    daemon.deploy(name, GOOD.format(number=1))
    assert cli(daemon, "alias", name, "prod", "$LATEST").returncode == 0
    (tmp_path / "f.py").write_text(GOOD.format(number=2))
    done = cli(daemon, "deploy", str(tmp_path), "--name", name, "--alias", "prod", "--canary", "10%")
    assert done.returncode == 2 and f"{name}:prod can have no canary" in done.stderr
    assert daemon.call(name) == 1


@pytest.mark.parametrize(
    "guard", [{"most_errors": 1.0}, {"most_errors": 0.1, "least_requests": 1001}, {"most_errors": 0.1, "hold_s": -1}]
)
def test_a_guard_that_can_decide_nothing_is_refused(daemon: RunningDaemon, name: str, guard: dict[str, Any]) -> None:
    daemon.deploy(name, GOOD.format(number=1))
    daemon.manage("POST", f"/functions/{name}/versions", "{}")
    body = json.dumps({"version": "1", "guard": guard})
    assert daemon.manage("PUT", f"/functions/{name}/aliases/prod", body).status == 400
    body = json.dumps({"version": "1", "guard": {"most_errors": 0.1}})
    answer = daemon.manage("PUT", f"/functions/{name}/aliases/prod", body)
    assert answer.status == 400 and "a second version that has a share" in answer.json["errorMessage"]
