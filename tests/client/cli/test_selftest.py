"""The files in which `sockd selftest` looks for cases."""

from __future__ import annotations

import re
from pathlib import Path

from sockd.client.cli.source.selftest import FOLDERS

REPOSITORY = Path(__file__).resolve().parents[3]
A_CASE = re.compile(r"^@case\(", re.MULTILINE)


def test_each_file_with_a_case_is_one_that_selftest_runs() -> None:
    with_cases = [path for path in (REPOSITORY / "tests").rglob("test_*.py") if A_CASE.search(path.read_text())]
    assert len(with_cases) > 30
    ours = [REPOSITORY / folder for folder in FOLDERS]
    assert [path for path in with_cases if not any(path.is_relative_to(each) for each in ours)] == []
