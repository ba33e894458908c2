"""scripts/test: which tests are asked when, and what its exit status says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PYTEST = """\
#!/bin/sh
[ "$2" = tests.support.areas ] && exec {python} "$@"
echo "$@" >> {asked}
next=$(head -n 1 {statuses})
sed -i 1d {statuses}
exit "$next"
"""
"""Stands for the interpreter: keeps what it was asked, and ends with the next of the listed statuses."""
ALONE, BESIDE, AGAIN = "-m alone", "not alone", "--last-failed"
LINTS = ["-m ruff check .", "-m ruff format --check .", "-m mypy"]
DIES = """\
import os
import pytest

@pytest.mark.parametrize("number", range(4))
def test_one_dies(number):
    if number == 2:
        os._exit(7)
"""


@pytest.mark.parametrize(
    ("in_ci", "statuses", "passes", "status"),
    [
        (True, [1, 0, 0], LINTS, 1),
        (False, [0, 0, 1], LINTS, 1),
        (True, [0, 0, 0, 0, 0], [*LINTS, ALONE, BESIDE], 0),
        (True, [0, 0, 0, 1, 0, 0], [*LINTS, ALONE, BESIDE, AGAIN], 0),
        (True, [0, 0, 0, 0, 1, 0], [*LINTS, ALONE, BESIDE, AGAIN], 0),
        (True, [0, 0, 0, 1, 1, 1], [*LINTS, ALONE, BESIDE, AGAIN], 1),
        (True, [0, 0, 0, 0, 1, 2], [*LINTS, ALONE, BESIDE, AGAIN], 2),
        (True, [0, 0, 0, 2], [*LINTS, ALONE], 2),
        (True, [0, 0, 0, 137], [*LINTS, ALONE], 137),
        (True, [0, 0, 0, 1, 3], [*LINTS, ALONE, BESIDE], 3),
        (True, [0, 0, 0, 0, 5], [*LINTS, ALONE, BESIDE], 5),
        (False, [0, 0, 0, 1, 0], [*LINTS, ALONE, BESIDE], 1),
        (False, [0, 0, 0, 0, 1], [*LINTS, ALONE, BESIDE], 1),
    ],
)
def test_everything_is_asked_and_no_failure_is_lost(
    in_ci: bool, statuses: list[int], passes: list[str], status: int, tmp_path: Path
) -> None:
    came, asked = run(tmp_path, in_ci, statuses)
    assert came == status
    assert len(asked) == len(passes) and all(words in line for words, line in zip(passes, asked, strict=True)), asked


@pytest.mark.parametrize(
    ("in_ci", "statuses", "status"),
    [(True, [0], 0), (True, [1, 0], 0), (True, [1, 1], 1), (True, [4], 4), (False, [1], 1)],
)
def test_what_is_named_is_asked_in_one_process(in_ci: bool, statuses: list[int], status: int, tmp_path: Path) -> None:
    came, asked = run(tmp_path, in_ci, statuses, "tests/linux", "-x")
    assert came == status
    assert len(asked) == len(statuses) and all(line.endswith("tests/linux -x") for line in asked), asked
    assert "--numprocesses" not in "".join(asked)


@pytest.mark.parametrize(
    ("in_ci", "statuses", "status"),
    [(True, [0, 0], 0), (True, [5, 0], 0), (True, [0, 5], 0), (True, [5, 1, 0], 0), (False, [1, 5], 1)],
)
def test_an_area_is_its_tests_without_the_linters(
    in_ci: bool, statuses: list[int], status: int, tmp_path: Path
) -> None:
    came, asked = run(tmp_path, in_ci, statuses, area="base")
    assert came == status
    assert [ALONE in asked[0], BESIDE in asked[1]] == [True, True]
    assert all("tests/base" in line and "tests/linux" not in line for line in asked[:2]), asked


def test_an_area_that_is_unknown_runs_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, False, [], area="attic") == (2, [])


def run(directory: Path, in_ci: bool, statuses: list[int], *arguments: str, area: str = "") -> tuple[int, list[str]]:
    """Its status, and what it asked of pytest and the linters."""
    asked, reported, python = directory / "asked", directory / "statuses", directory / "python"
    reported.write_text("".join(f"{each}\n" for each in statuses))
    python.write_text(PYTEST.format(asked=asked, statuses=reported, python=sys.executable))
    python.chmod(0o755)
    env = {**os.environ, "SOCKD_CI": "1" if in_ci else "", "AREA": area}
    done = subprocess.run(
        [ROOT / "scripts/test", python, *arguments], cwd=ROOT, env=env, capture_output=True, check=False
    )
    assert reported.read_text() == "", done.stderr
    return done.returncode, asked.read_text().splitlines() if asked.exists() else []


def test_a_process_that_dies_breaks_the_run_off(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(DIES)
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.broken_off", "-p", "no:cacheprovider"]
    command += ["--numprocesses", "2", "--max-worker-restart", "0", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout
    assert "crashed while running" in done.stdout
    assert "ended: status 7" in done.stdout


FAILS_ONCE = """\
import os
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_it(number):
    assert "AGAIN" in os.environ
"""


@pytest.mark.parametrize(("count", "status"), [(1, 0), (3, 0), (4, 1)])
def test_what_is_asked_twice_is_counted_and_more_than_three_fail_the_run(
    count: int, status: int, tmp_path: Path
) -> None:
    (tmp_path / "test_it.py").write_text(FAILS_ONCE.format(count=count) + "\ndef test_steady():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-q", str(tmp_path)]
    again = ["-p", "tests.support.asked_twice", "--last-failed", "--last-failed-no-failures=none"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    first = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert first.returncode == pytest.ExitCode.TESTS_FAILED, first.stdout
    second = subprocess.run(
        [*command, *again], cwd=tmp_path, env={**env, "AGAIN": "1"}, capture_output=True, text=True, check=False
    )
    assert second.returncode == status, second.stdout
    assert f"{count} asked twice, of which 0 failed again" in second.stdout
    assert second.stdout.count("unsteady: ") == count
