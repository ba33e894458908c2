"""`sockd sebs` as a process of its own; what it runs is tested in tests/benchmarks/sebs_runner."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


def run(cache: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {key: value for key, value in os.environ.items() if not key.startswith(("SOCKD_", "AWS_"))}
    return subprocess.run(
        [sys.executable, "-m", "sockd", "sebs", *arguments],
        capture_output=True,
        text=True,
        timeout=20,
        cwd=REPOSITORY,
        env={**known, "NO_COLOR": "1", "SOCKD_SEBS_CACHE": str(cache), **environment},
        check=False,
    )


@pytest.mark.parametrize("command", ["fetch", "ls", "package", "invoke", "run"])
def test_every_command_has_help(command: str, tmp_path: Path) -> None:
    done = run(tmp_path, command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: " in done.stdout


def test_the_benches_are_listed(tmp_path: Path) -> None:
    benches = {bench["id"]: bench for bench in json.loads(run(tmp_path, "ls", "--json").stdout)}
    assert len(benches) == 14 and benches["220.video-processing"]["needs"] == ["ffmpeg"]


def test_a_wrong_name_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    done = run(tmp_path, "invoke", "tumbnailer", "test", "--out", str(tmp_path / "out"))
    assert done.returncode == 3
    assert "did you mean 'thumbnailer'" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments", [("invoke", "110", "test", "--out", "out"), ("package", "110", "there", "--arm", "own")]
)
def test_without_the_suite_there_is_a_command_that_helps(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    arguments = tuple(str(tmp_path / each) if each in ("out", "there") else each for each in arguments)
    done = run(tmp_path / "cache", *arguments)
    assert done.returncode == 1
    assert re.search(r"fix: \S*sockd sebs fetch", done.stderr)


def test_a_fetch_without_an_index_says_so(tmp_path: Path) -> None:
    nowhere = {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0", "UV_NO_CACHE": "1"}
    done = run(tmp_path, "fetch", **nowhere)
    assert done.returncode == 1
    assert "FetchFailed" in done.stderr and "fix: is a package index" in done.stderr


def test_one_package_of_a_bench_is_never_written_over(tmp_path: Path) -> None:
    done = run(tmp_path, "package", "110", str(tmp_path))
    assert done.returncode == 2 and "already exists" in done.stderr
