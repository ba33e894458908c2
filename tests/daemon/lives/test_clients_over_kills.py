"""Callers with retries over a SIGKILL of the worker: no result is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.running import REPO, Start

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

SCRIPT = """
import select
import sockd

@sockd.function(concurrency=4, retries=10)
def doubled(x):
    select.select([], [], [], 0.2)
    return 2 * x

@sockd.function
def added(x, y):
    return x + y

if __name__ == "__main__":
    import json
    print(json.dumps(added.starmap([(1, 2), (3, 4)])), flush=True)
    for each, result in doubled.as_completed(range(40)):
        print(each, result, flush=True)
    print(json.dumps(doubled.map(range(40, 60))), flush=True)
"""


def test_a_map_with_retries_loses_nothing_when_its_worker_is_killed(start: Start, tmp_path: Path) -> None:
    daemon = start()
    project = tmp_path / "project"
    project.mkdir()
    (project / "app.py").write_text(SCRIPT)
    known = {name: value for name, value in os.environ.items() if name != "SOCKD_URL"}
    paths = {"SOCKD_STATE_DIR": str(daemon.state), "PYTHONPATH": str(REPO), "XDG_CONFIG_HOME": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "app.py"], cwd=project, env={**known, **paths}, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "[3, 7]\n"
        first = [client.stdout.readline() for _ in range(6)]
        daemon.kill()
        daemon.end_reading()
        again = start()
        rest = [client.stdout.readline() for _ in range(34)]
        assert sorted(tuple(map(int, line.split())) for line in [*first, *rest]) == [(n, 2 * n) for n in range(40)]
        assert client.stdout.readline() == f"{[2 * n for n in range(40, 60)]}\n"
        assert client.wait(60) == 0
    assert again.terminate() == 0
