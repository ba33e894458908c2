"""A worker makes the templates of the worker before again."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.daemon.running import RunningDaemon
from tests.daemon.snapshots import TOKEN, deploy, origin, state
from tests.support.cases import case
from tests.support.private_worker import command_without
from tests.support.threads import at_once

pytestmark = pytest.mark.root
CONFIG = "[sandbox]\nmemory_mb = 8192\n"


@pytest.fixture(scope="module")
def ledger_of_module() -> None:
    """The daemons end within the test."""


@pytest.fixture
def command(request: pytest.FixtureRequest) -> Sequence[str]:
    """What starts a worker, which may lack a protection."""
    return command_without(request.config.getoption("broken", default=""))


@case("T16", "start a worker again", expect="the templates of the last day are made again, the most used first")
def test_templates_are_made_again_the_most_used_first(tmp_path: Path, command: Sequence[str]) -> None:
    directory = tmp_path / "state"
    first = RunningDaemon.start(directory, command=command)
    try:
        for name in ("a-seldom", "z-often"):
            deploy(first, name, TOKEN)
        for name in ("a-seldom", "z-often", "z-often"):
            assert origin(first.run(name)) == "template"
        assert first.terminate() == 0
    finally:
        first.close()
    second = RunningDaemon.start(directory, command=command)
    try:
        second.wait_line("a-seldom .LATEST has a template")
        made = [line.split(": ")[1].split()[0] for line in second.lines if "has a template" in line]
        assert made == ["z-often", "a-seldom"]
        assert state(second, "z-often") == ("serving", "")
        assert origin(second.run("z-often")) == "template"
        assert second.terminate() == 0
    finally:
        second.close()


@case(
    "T11",
    "kill a worker, start it again, and call from 64 clients at once",
    expect="no request fails, and templates serve",
)
def test_64_clients_at_once_are_answered_while_templates_are_made_again(tmp_path: Path, command: Sequence[str]) -> None:
    directory = tmp_path / "state"
    first = RunningDaemon.start(directory, CONFIG, command=command)
    try:
        deploy(first, "burst", TOKEN, concurrency=64, memory_mb=64)
        assert origin(first.run("burst")) == "template"
    finally:
        first.signal(signal.SIGKILL)
        first.process.wait()
        first.close()
    second = RunningDaemon.start(directory, CONFIG, command=command)
    try:
        answers = at_once(64, lambda _: second.run("burst"))
        assert {answer.status for answer in answers} == {200}
        assert len({answer.json["random"] for answer in answers}) == 64
        second.when(lambda: state(second, "burst") == ("serving", "") or None)
        answers = at_once(64, lambda _: second.run("burst"))
        assert {origin(answer) for answer in answers} == {"template"}
        assert second.terminate() == 0
    finally:
        second.close()
