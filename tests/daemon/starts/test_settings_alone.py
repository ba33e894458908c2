"""Deploys that are refused before anything is switched to them, and settings that change without a deploy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.running import RunningDaemon
from tests.support import sockd_template

pytestmark = pytest.mark.root


def sockd(daemon: RunningDaemon, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sockd", *arguments, "--state-dir", str(daemon.state)]
    return sockd_template.run(command, cwd=cwd)


def test_a_broken_handler_never_takes_over(daemon: RunningDaemon, tmp_path: Path) -> None:
    directory = tmp_path / "live"
    directory.mkdir()
    handler = directory / "handler.py"
    handler.write_text("def handler(event): return 'first'")
    assert sockd(daemon, "deploy", str(directory), cwd=tmp_path).returncode == 0
    for broken, words in (
        ("def handler(event: return 1", "/var/task/handler.py, line 1: SyntaxError"),
        ("def handle(event): return 1", "/var/task/handler.py has no handler"),
    ):
        handler.write_text(broken)
        refused = sockd(daemon, "deploy", str(directory), cwd=tmp_path)
        assert refused.returncode == 1 and words in refused.stderr
        assert daemon.call("live") == "first"


def test_the_fix_of_a_timeout_changes_the_setting_and_not_the_code(daemon: RunningDaemon, tmp_path: Path) -> None:
    daemon.deploy(
        "long", "import select\ndef f(event):\n    select.select([], [], [], event)\n    return 'ok'", timeout_s=0.1
    )
    failed = sockd(daemon, "invoke", "long", "-d", "0.5", cwd=tmp_path)
    assert failed.returncode == 5 and "sockd config long --timeout S" in failed.stderr
    (tmp_path / "f.py").write_text("def f(event): return 'of another directory'")
    changed = sockd(daemon, "config", "long", "--timeout", "5", "--memory", "256", "--json", cwd=tmp_path)
    reported = json.loads(changed.stdout)
    assert (reported["timeout_s"], reported["memory_mb"], reported["version_number"]) == (5.0, 256, 2)
    assert daemon.call("long", 0.5) == "ok"
    assert "256 MB" in sockd(daemon, "config", "long", cwd=tmp_path).stdout
    assert sockd(daemon, "config", "long", "--timeout", "-1", cwd=tmp_path).returncode == 1
    assert sockd(daemon, "config", "nobody", cwd=tmp_path).returncode == 3


@pytest.mark.parametrize(
    ("files", "settings", "timeout_s"),
    [
        ({"f.py": "def f(event): pass"}, {}, 30.0),
        ({"f.py": "def f(event): pass"}, {"timeout_s": 2}, 2.0),
        ({"f.py": "def f(event): pass", "sockd.toml": "timeout_s = 7"}, {}, 7.0),
        ({"f.py": "def f(event): pass", "ol.yaml": "limits:\n  runtime_sec: 9\n"}, {}, 9.0),
        ({"main.py": "def handler(event): pass", "ol.yaml": ""}, {}, 30.0),
        ({"main.py": "def handler(event): pass"}, {}, 3.0),
        ({"lambda_function.py": "def lambda_handler(event, context): pass"}, {}, 3.0),
        ({"f.py": "def f(event): pass"}, {"aws": {}}, 3.0),
    ],
)
def test_the_default_timeout_is_that_of_the_convention(
    daemon: RunningDaemon, files: dict[str, str], settings: dict[str, Any], timeout_s: float
) -> None:
    assert daemon.deploy("timed", files, **settings)["timeout_s"] == timeout_s
