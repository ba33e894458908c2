"""Takes a protection of private networks away: the case that guards it must go red, and another one must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.can_fail import verdicts

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]


def test_the_case_of_functions_goes_red_where_all_may_be_called(tmp_path: Path) -> None:
    assert verdicts("any-function", {"N7", "N8"}, tmp_path, folder="isolation/networks") == {
        "N7": "passed",
        "N8": "failed",
    }


def test_the_case_of_names_goes_red_where_each_function_has_one_asked_for(tmp_path: Path) -> None:
    assert verdicts("separate-queries", {"N5", "N6"}, tmp_path, folder="isolation/networks") == {
        "N5": "failed",
        "N6": "passed",
    }
