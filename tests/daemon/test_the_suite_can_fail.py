"""Takes one protection away at a time: the case that guards it must go red, and another one must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.can_fail import verdicts

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("broken", "red", "green"),
    [
        ("early-end", "L5", "L12"),
        ("open-ports", "L12", "L5"),
        ("open-ports", "L17", "L5"),
        ("no-task-shares", "D13", "K25"),
        ("shared-changes", "K25", "K26"),
        ("passed-on-keys", "K26", "K25"),
        ("any-thread", "T1", "T2"),
        ("unread-output", "T2", "T3"),
        ("never-again", "T3", "T2"),
        ("no-next-source", "T4", "T2"),
        ("endless-restore", "T5", "T4"),
        ("same-numbers", "T8", "T7"),
        ("live-connections", "T13", "T7"),
        ("public-template", "T14", "T11"),
        ("forgets-uses", "T16", "T11"),
        ("any-owner", "W3", "W1"),
        ("no-notice", "W4", "W1"),
        ("closed-last", "W7", "W1"),
        ("endless-wait", "W8", "W9"),
        ("hasty-judge", "W10", "W9"),
        ("early-answer", "W12", "W4"),
        ("believed-nodes", "W16", "W1"),
        ("first-nodes", "W16", "W1"),
    ],
)
def test_without_a_protection_its_case_fails_and_the_other_does_not(
    broken: str, red: str, green: str, tmp_path: Path
) -> None:
    assert verdicts(broken, {red, green}, tmp_path, folder="daemon") == {red: "failed", green: "passed"}
