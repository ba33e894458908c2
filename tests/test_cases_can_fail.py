"""Cases that start no worker can fail: without its protection each goes red, and with another one missing it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.broken import IN_TESTS
from tests.support.can_fail import verdicts

pytestmark = pytest.mark.timeout(300)
CASES = {
    "any-address": ("K27", "images/registry"),
    "one-log": ("K28", "observe"),
    "any-configuration": ("K29", "images"),
    "any-modules": ("K30", "starts/packages"),
    "no-host-check": ("K31", "http"),
}
"""Protection: the case that sees that it is gone, and its folder."""
NONE_OF_THESE = "any-function"
"""A protection of something else."""


@pytest.mark.parametrize("broken", CASES)
def test_a_case_goes_red_without_its_protection_and_only_then(broken: str, tmp_path: Path) -> None:
    case, folder = CASES[broken]
    assert verdicts(broken, {case}, tmp_path, folder=folder) == {case: "failed"}
    assert verdicts(NONE_OF_THESE, {case}, tmp_path, folder=folder) == {case: "passed"}


def test_each_of_these_protections_is_taken_from_the_process_of_the_tests() -> None:
    assert CASES.keys() <= IN_TESTS
