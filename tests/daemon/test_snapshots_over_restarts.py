"""A worker makes the templates of the worker before again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.daemon.running import RunningDaemon
from tests.daemon.snapshots import TOKEN, deploy, origin, state

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def ledger_of_module() -> None:
    """The daemons end within the test."""


def test_templates_are_made_again_the_most_used_first(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    first = RunningDaemon.start(directory)
    try:
        for name in ("a-seldom", "z-often"):
            deploy(first, name, TOKEN)
        for name in ("a-seldom", "z-often", "z-often"):
            assert origin(first.run(name)) == "template"
        assert first.terminate() == 0
    finally:
        first.close()
    second = RunningDaemon.start(directory)
    try:
        second.wait_line("a-seldom .LATEST has a template")
        made = [line.split(": ")[1].split()[0] for line in second.lines if "has a template" in line]
        assert made == ["z-often", "a-seldom"]
        assert state(second, "z-often") == ("serving", "")
        assert origin(second.run("z-often")) == "template"
        assert second.terminate() == 0
    finally:
        second.close()
