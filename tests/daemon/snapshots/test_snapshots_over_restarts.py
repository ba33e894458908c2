"""A worker makes the templates of the worker before again."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.daemon.running import RunningDaemon
from tests.daemon.snapshots.snapshotted import TOKEN, deploy, origin, state
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
        made = [line.split(": ")[1].split()[0] for line in second.lines if "has a template" in line]
        assert made == ["z-often", "a-seldom"]  # before the port was open
        assert state(second, "z-often") == ("serving", "")
        assert origin(second.run("z-often")) == "template"
        assert second.terminate() == 0
    finally:
        second.close()


def test_a_published_version_is_forked_from_its_template_again_after_a_kill(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    first = RunningDaemon.start(directory)
    try:
        deploy(first, "published", TOKEN)
        assert first.manage("POST", "/functions/published/versions").status == 200
        first.when(lambda: origin(first.run("published:1")) == "template" or None)
        saved = directory / "templates.json"
        first.when(lambda: (saved.exists() and '"1"' in saved.read_text()) or None)
    finally:
        first.signal(signal.SIGKILL)
        first.process.wait()
        first.close()
    second = RunningDaemon.start(directory)
    try:
        assert origin(second.run("published:1")) == "template"
        assert second.terminate() == 0
    finally:
        second.close()


def test_a_worker_does_not_wait_for_templates_without_a_time_for_them(tmp_path: Path) -> None:
    directory, slow = tmp_path / "state", f"import time\ntime.sleep(3)\n{TOKEN}"
    first = RunningDaemon.start(directory)
    try:
        deploy(first, "slow", slow)
        assert origin(first.run("slow")) == "template"
        assert first.terminate() == 0
    finally:
        first.close()
    second = RunningDaemon.start(directory, "[zygote]\nrebuild_s = 0\n")
    try:
        assert state(second, "slow")[0] == "making"
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
