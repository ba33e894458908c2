"""Shows that a case can fail: runs some against a worker with one protection taken away, and tells which went red."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.daemon.running import REPO

DEADLINE_S = 240


def verdicts(broken: str, cases: Iterable[str], directory: Path, *, folder: str, only: str = "") -> dict[str, str]:
    """Case id to verdict of a run of its own.

    Args:
        broken: a name of `broken.BREAKS`, or "" for a whole worker; directory: for the report; folder: tests/<this>;
        only: of the cases' tests those that this names, as pytest's -k.
    Raises: AssertionError: no file has the cases; with the run's output, when that did not come to an end."""
    cases = list(cases)
    file = directory / f"{broken or 'whole'}.json"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.support.selftest",
        "-p",
        "no:cacheprovider",
        "-q",
        "--tb=line",
    ]
    command += [
        *files_of(cases, REPO / "tests" / folder),
        "-k",
        only,
        f"--case={','.join(cases)}",
        f"--broken={broken}",
        f"--cases-json={file}",
    ]
    command.append(f"--basetemp={directory / 'runs'}")
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run(command, cwd=REPO, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert file.exists(), done.stdout + done.stderr
    return {row["id"]: row["verdict"] for row in json.loads(file.read_text())}


def files_of(cases: Iterable[str], folder: Path) -> list[str]:
    """The files with these cases: to collect the whole folder takes longer than most of the runs.

    Raises: AssertionError: there are none, for which pytest would collect all tests."""
    words = [f'"{case}"' for case in cases]
    found = sorted(str(file) for file in folder.rglob("test_*.py") if any(word in file.read_text() for word in words))
    assert found, f"no file in {folder} has one of the cases {', '.join(words)}"
    return found
