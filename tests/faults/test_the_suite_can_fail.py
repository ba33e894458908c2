"""The suite is able to fail: without a protection, exactly the cases that are about it go red."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.can_fail import verdicts

pytestmark = pytest.mark.root

BREAKS = {
    "no-pids-limit": ({"D1"}, {"D2", "D5"}),
    "no-memory-limit": ({"D2", "D3"}, {"D4", "D5"}),
    "no-tmp-limit": ({"D4", "D5"}, {"D2", "D6"}),
    "shares-by-subset": ({"P1", "P2"}, {"P3"}),
    "verifies-nothing": ({"P2"}, {"P1", "P3"}),
    "process-uncompared": ({"P48"}, {"E8"}),
    "no-reseed": ({"E1"}, {"E8"}),
    "no-canary": ({"E6"}, {"E8"}),
    "late-deadlines": ({"F7"}, {"F4", "F6"}),
    "no-lock": ({"G3"}, {"F4"}),
    "no-sweep": ({"G1"}, {"G3"}),
    "late-commit": ({"G1"}, {"G3"}),
    "nothing-undone": ({"G4"}, {"G3"}),
    "no-host-check": ({"H8"}, {"H2", "H4"}),
    "no-signatures": ({"H4", "H8"}, {"H5", "H7"}),
    "no-replays": ({"H5"}, {"H4", "H7"}),
    "no-parity": ({"I21", "I22"}, {"I24"}),
    "believes-nodes": ({"I22"}, {"I21"}),
    "no-single-flight": ({"I23"}, {"I24"}),
    "trusts-l1": ({"I24"}, {"I23"}),
    "plain-lru": ({"I25"}, {"I24"}),
    "endless-node": ({"I26"}, {"I25"}),
    "kept-memory": ({"K2"}, {"H8"}),
    "borrowed-pidfd": ({"K0", "K16"}, {"F4", "F6"}),
}
"""Protection taken away -> (cases that must fail, some that must not)."""
PART = " and ".join(
    (
        "(not test_a_daemon_that_is_killed or [idle])",
        "(not test_a_step_of or in_the_daemon[error])",
        "(not test_what_an_import_would_see or imported] or names] or locale])",
        "(not test_what_an_import_would_not_see or reads])",
    )
)
"""A few tests each of the longest cases, as pytest's -k says it."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("broken", BREAKS)
def test_without_a_protection_its_cases_fail_and_others_do_not(broken: str, tmp_path: Path) -> None:
    red, green = BREAKS[broken]
    came = verdicts(broken, sorted(red | green), tmp_path, folder="faults", only=PART)
    assert came == {**dict.fromkeys(red, "failed"), **dict.fromkeys(green, "passed")}
