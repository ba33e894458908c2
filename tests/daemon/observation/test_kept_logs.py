"""Logs on disk: there before the answer is, after a kill, under their request's id; bounded; gone with their function."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.daemon.running import RunningDaemon
from tests.support.threads import at_once

pytestmark = pytest.mark.root

KEPT = "[logs]\nkeep_mb = 4\n"


def test_what_was_answered_is_found_after_a_kill_by_its_request_s_id(tmp_path: Path) -> None:
    state = tmp_path / "state"
    daemon = RunningDaemon.start(state, KEPT)
    try:
        daemon.deploy("prints", "import os\ndef f(event):\n os.write(1, b'%d \\0\\xff\\n' % event)\n return event")
        daemon.deploy("other", "def f(event): print('other')")
        daemon.call("other")
        answers = at_once(20, lambda number: daemon.run("prints", number))
        daemon.kill()
        daemon.close()
        daemon = RunningDaemon.start(state, KEPT)
        for number, answer in enumerate(answers):
            (record,) = daemon.logs("prints", answer.headers["x-amzn-requestid"])
            assert (record["text"], record["function"], record["version"]) == (
                f"{number} \0\\xff\n",
                "prints",
                "$LATEST",
            )
        assert len(daemon.logs("prints")) == 20 and len(daemon.logs("other")) == 1
        since = json.loads(daemon.manage("GET", "/functions/prints/logs?since=4000000000").body)
        assert since == [] and daemon.manage("GET", "/functions/prints/logs?since=x").status == 400
        daemon.remove("prints")
        daemon.deploy("prints", "def f(event): print('again')")
        daemon.call("prints")
        assert [record["text"] for record in daemon.logs("prints")] == ["again\n"]
        assert "sockd_lost_logs_total 0.0" in daemon.request("GET", "/metrics").body.decode()
        assert daemon.terminate() == 0
        assert not any("Traceback" in line for line in daemon.lines), daemon.lines
    finally:
        daemon.close()


def test_a_flood_stays_within_its_bound_and_disturbs_no_one(tmp_path: Path) -> None:
    state = tmp_path / "state"
    daemon = RunningDaemon.start(state, "[logs]\nkeep_mb = 1\nmemory_mb = 1\n")
    try:
        daemon.deploy("flood", "def f(event): print('x' * (10 << 20))", log_bytes=300_000)
        daemon.deploy("calm", "def f(event): return event")
        for _ in range(12):
            daemon.call("flood")
        assert daemon.call("calm", 5) == 5
        kept = sum(file.stat().st_size for file in (state / "logs").iterdir())
        assert 300_000 <= kept <= 1_500_000
        newest = daemon.logs("flood")[-1]
        assert len(newest["text"]) == 300_000 and newest["dropped_bytes"] == (10 << 20) + 1 - 300_000
    finally:
        daemon.close()
