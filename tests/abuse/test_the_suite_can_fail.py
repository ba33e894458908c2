"""Takes one protection away at a time: the cases that guard it must go red, and the others that are asked must not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.broken import BREAKS
from tests.support.can_fail import verdicts

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

BREAKS_AND_CASES = {
    "no-seccomp": ({"A4", "B7", "C1", "C2", "K9", "K10", "K11"}, {"A2", "A3", "B3"}),
    "shared-stdin": ({"K9"}, {"A2", "B7", "C2"}),
    "package-namespaces": ({"K10"}, {"A2", "B7", "C2", "K11"}),
    "open-fds": ({"A2"}, {"A4", "B7", "C2"}),
    "capabilities": ({"C8"}, {"A2", "B3", "B7"}),
    "writable-root": ({"A5"}, {"A2", "B7", "C2"}),
    "host-proc": ({"A13"}, {"A4", "B7", "C2"}),
    "shared-uid": ({"C8"}, {"A2", "B3", "C2"}),
    "shared-ipc": ({"B6", "C8"}, {"A2", "B3", "C2"}),
    "host-network": ({"B3", "B4", "B5", "C8"}, {"A2", "B7", "C2"}),
    "cgroup-files": ({"B13"}, {"A2", "B7", "C2"}),
    "no-port-guard": ({"K1"}, {"B3", "C2", "K7"}),
    "no-packet-guard": ({"K23"}, {"B3", "K1"}),
    "any-listener": ({"K24"}, {"K1"}),
    "keys-reach-all": ({"K21"}, {"K20"}),
    "no-socket-limit": ({"K7"}, {"B3", "C2", "K1"}),
    "long-turns": ({"K5"}, {"A2", "B7", "C2"}),
    "long-frames": ({"K5"}, {"A2", "B7", "C2"}),
}
"""Protection: the cases that see that it is gone, and some that must not care."""
COMPILED = {"shared-stdin", "open-fds", "capabilities", "shared-ipc", "host-network"}


@pytest.mark.parametrize("broken", BREAKS_AND_CASES)
def test_the_cases_that_guard_a_protection_go_red_without_it(broken: str, tmp_path: Path) -> None:
    if broken in COMPILED and not shutil.which("cc"):
        pytest.skip("no C compiler here to take this protection out of zygote/native")
    red, green = BREAKS_AND_CASES[broken]
    seen = verdicts(broken, red | green, tmp_path, folder="abuse")
    assert {id for id, verdict in seen.items() if verdict == "failed"} == red, seen
    assert {id for id, verdict in seen.items() if verdict == "passed"} == green, seen


def test_every_protection_named_here_can_be_taken_away() -> None:
    assert set(BREAKS) >= set(BREAKS_AND_CASES)
