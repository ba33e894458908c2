"""Which Zygotes a daemon has that follows another one."""

from __future__ import annotations

import json
from pathlib import Path

from sockd.functions.serving.live_functions import OPENED_AT_START
from tests.daemon.running import RunningDaemon
from tests.support.servers.package_index import PackageIndex, wheel

SLOW = "import time as _t\n_end = _t.perf_counter() + 0.03\nwhile _t.perf_counter() < _end: pass\nV = 1\n"


def test_what_a_killed_daemon_had_not_verified_is_verified_without_a_start(tmp_path: Path, index: PackageIndex) -> None:
    index.add(wheel("slow", "1.0", {"slow.py": SLOW}))
    config = f'[packages]\nindex_url = "{index.url}"\n'
    daemon = RunningDaemon.start(tmp_path / "state", config)
    try:
        daemon.deploy("f", {"f.py": "import slow\ndef f(event): return slow.V\n", "requirements.txt": "slow==1.0"})
        assert daemon.call("f") == 1 and daemon.call_learned("f") == 1
        daemon.kill()
        daemon.end_reading()
        learned = daemon.state / "learned.json"
        content = json.loads(learned.read_text())
        assert len(content["verified"]) == 1
        learned.write_text(json.dumps({**content, "verified": []}))  # as if it had been killed a second earlier
        again = RunningDaemon.start(daemon.state, config)
        try:
            again.wait_verified()
            reported = again.manage("GET", "/functions/f/imports").json
            assert reported["sharing"] == "a Zygote has imported ahead all that its top level imports", again.lines
            assert reported["passed_over"] == []
            assert json.loads(learned.read_text())["verified"] == content["verified"]
        finally:
            again.close()
    finally:
        daemon.close()


def test_zygotes_of_functions_that_many_were_deployed_after_are_made_again(tmp_path: Path, index: PackageIndex) -> None:
    index.add(wheel("slow", "1.0", {"slow.py": SLOW}))
    config = f'[packages]\nindex_url = "{index.url}"\n'
    first = RunningDaemon.start(tmp_path / "state", config)
    try:
        first.deploy("f", {"f.py": "import slow\ndef f(event): return slow.V\n", "requirements.txt": "slow==1.0"})
        assert first.call("f") == 1 and first.call_learned("f") == 1
        for number in range(OPENED_AT_START):
            first.deploy(f"other-{number}", "def f(event): return 2")
        assert first.terminate() == 0
    finally:
        first.close()
    second = RunningDaemon.start(tmp_path / "state", config)
    try:
        assert "slow" in str(second.manage("GET", "/tree").json)
        assert second.call("f") == 1 and second.terminate() == 0
    finally:
        second.close()
