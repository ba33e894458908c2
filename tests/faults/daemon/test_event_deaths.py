"""Events that take the daemon with them: they do not keep it from serving, and in the end they are dead letters."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.gate import Gate
from tests.daemon.running import DEADLINE_S
from tests.faults.daemon.lives import Lives
from tests.support.cases import Happened, case
from tests.support.servers.package_index import PackageIndex

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]

EVENTS = 3
CONFIG = """
[events]
max_deaths = 2
death_delay_s = 0.2
max_death_delay_s = 0.4
"""
FATAL = {"f.py": "from gate import wait\ndef f(event): return wait(event)\n", "gate.py": Gate.CODE}


@case(
    "K0",
    "the daemon dies whenever an event of a function runs",
    expect="each life serves others, runs one such event alone and late, and the last one has dead letters of all",
)
def test_events_that_take_the_daemon_with_them(
    state: Path, index: PackageIndex, up: tuple[str, ...], gate: Gate, happened: Happened
) -> None:
    lives = Lives(state, index, CONFIG, command=up)
    try:
        daemon = lives.start()
        daemon.deploy("fatal", FATAL, timeout_s=60)
        daemon.deploy("good", "def f(event): return event")
        daemon.manage("PUT", "/functions/good/event-invoke-config", '{"on_success": "directory:good"}')
        for _ in range(EVENTS):
            later(lives, "fatal", gate.port)
        for _ in range(EVENTS):
            gate.arrived()
        lives.kill()
        for number in range(EVENTS):
            lives.start()
            later(lives, "good", number)
            gate.arrived()
            waiting = lives.daemon.manage("GET", "/events?state=waiting&function=fatal").json
            assert [event["state"] for event in waiting].count("running") == 1, waiting
            until_good(lives, number + 1)
            lives.kill()
        lives.start()
        later(lives, "good", EVENTS)
        until_good(lives, EVENTS + 1)
        until_dead(lives)
        dead = lives.daemon.manage("GET", "/events?state=dead").json
        assert [letter["reason"] for letter in dead] == ["WorkerDied"] * EVENTS, dead
        assert gate.nobody_comes()
        happened(f"{EVENTS} events, {EVENTS + 1} deaths of the daemon; {lives.reported}")
        lives.end()
    finally:
        lives.close()


def later(lives: Lives, name: str, event: object) -> None:
    answer = lives.daemon.run(name, event, X_Amz_Invocation_Type="Event")
    assert answer.status == 202, answer


def until_good(lives: Lives, count: int) -> None:
    """Wait until so many of its events are over, in all lives; each look waits for the daemon."""
    look(lives, lambda status: len(list((lives.state / "destinations" / "good").glob("*.json"))) >= count)


def until_dead(lives: Lives) -> None:
    look(lives, lambda status: status["dead"] == EVENTS)


def look(lives: Lives, condition: Callable[[dict[str, Any]], bool]) -> None:
    ends = time.monotonic() + DEADLINE_S
    while not condition(status := lives.daemon.status()["events"]):
        assert time.monotonic() < ends, status
