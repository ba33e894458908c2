"""Each clause of the rule of sharing is needed: without it, the case about what it compares goes red."""

from __future__ import annotations

from pathlib import Path

import pytest

from sockd.starts.zygotes.top_levels import soundness
from tests.support.can_fail import verdicts
from tests.support.cases import Happened, case

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

ABOUT = {
    "_other_packages": "was_not_requested",
    "_names_looked_up": "optional and imported",
    "_directories_listed": "plugins",
    "_files_looked_for": "file and function and not opens",
    "_metadata_asked_for": "version",
    "_pth_files": "pth",
    "_variables_read": "variable and Python",
    "_modules_loaded": "top_level and not order and not whole",
    "_whole_imports": "top_level and whole",
    "_order_of_imports": "top_level and order",
    "_variables_of_own_code": "top_level and Zygote",
}
"""Clause -> the tests of case P1 that are about it, as pytest's -k selects them."""


@case(
    "P44",
    "take each clause from the rule in turn, and verification with it",
    expect="the case about what the clause compares fails, and no other one",
    default=False,
)
@pytest.mark.parametrize("clause", [clause.__name__ for clause in soundness.CLAUSES])
def test_each_clause_is_needed(clause: str, tmp_path: Path, happened: Happened) -> None:
    only = f"({ABOUT[clause]}) or common_part"
    came = verdicts(f"without{clause}", ["P1", "P3"], tmp_path, folder="faults", only=only)
    happened(f"without {clause}: {came}")
    assert came == {"P1": "failed", "P3": "passed"}
