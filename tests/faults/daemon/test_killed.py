"""G1: SIGKILL of the daemon at random moments of what it does; the next one finds nothing but what was published."""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.daemon.lives import GONE, Lives
from tests.support.cases import Happened, case
from tests.support.servers.package_index import PackageIndex, wheel

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

POINTS, ALL_POINTS = 2, 50
FUNCTIONS = 6
CLIENTS = 3
CONFIG = """
[zygote]
max_nodes = 3
[sandbox]
pause_after_s = 0.005
memory_mb = 512
idle_limit = {idle}
[function]
memory_mb = 64
"""
SLOW = "import time as _t\n_end = _t.perf_counter() + 0.02\nwhile _t.perf_counter() < _end: pass\n"

Work = Callable[[Lives, "Known", int, int], None]
"""One turn of one client: its number, and the turn's."""


class Known:
    """What was answered: the version of each function that its last deploy named."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}
        self.wrong: list[str] = []

    def deploy(self, lives: Lives, name: str, version: int, requirement: str) -> None:
        code = f"import {requirement}\ndef f(event): return [{version}, event]"
        lives.daemon.deploy(name, {"f.py": code, "requirements.txt": requirement})
        self.versions[name] = version

    def call(self, lives: Lives, name: str, event: int) -> None:
        """The answer must be of the last version, or of the one whose deploy was cut off."""
        answer = lives.daemon.run(name, event)
        version = self.versions[name]
        if answer.status != 200 or answer.json not in ([version, event], [version + 1, event]):
            self.wrong.append(f"{name} {version}: {answer.status} {answer.body[:200]!r}")


def library(number: int) -> str:
    return f"lib{number % 4}"


def stand_idle(lives: Lives, known: Known, client: int, turn: int) -> None:
    threading.Event().wait(0.005)


def deploy(lives: Lives, known: Known, client: int, turn: int) -> None:
    name = f"f{client}"
    known.deploy(lives, name, known.versions[name] + 1, library(client + turn))
    known.call(lives, name, turn)


def invoke(lives: Lives, known: Known, client: int, turn: int) -> None:
    known.call(lives, f"f{turn % FUNCTIONS}", turn)


ACTIVITIES: dict[str, tuple[Work, int, float]] = {
    "idle": (stand_idle, 100, 0.1),
    "deploying": (deploy, 100, 0.5),
    "invoking": (invoke, 100, 0.15),
    "evicting": (invoke, 1, 0.2),
}
"""What the clients do, how many idle sandboxes are kept, and the longest that it goes on before the kill, in s."""


@contextmanager
def lives_of(state: Path, index: PackageIndex, config: str, up: tuple[str, ...]) -> Iterator[Lives]:
    lives = Lives(state, index, config, command=up)
    try:
        yield lives
    finally:
        lives.close()


@case(
    "G1",
    "SIGKILL of the daemon at random moments while it is idle, deploys, invokes, evicts",
    expect="it serves again within 2 s; no process, cgroup, mount, socket, file left; what was answered is still true",
)
@pytest.mark.parametrize("activity", ACTIVITIES)
def test_a_daemon_that_is_killed(
    state: Path, index: PackageIndex, up: tuple[str, ...], happened: Happened, everything: bool, activity: str
) -> None:
    work, idle, longest_s = ACTIVITIES[activity]
    seed = int.from_bytes(os.urandom(4), "big")
    rng = random.Random(seed)
    for number in range(4):
        index.add(wheel(library(number), "1.0", {f"{library(number)}.py": SLOW}))
    known = Known()
    with lives_of(state, index, CONFIG.format(idle=idle), up) as lives:
        lives.start()
        for number in range(FUNCTIONS):
            known.deploy(lives, f"f{number}", 1, library(number))
        try:
            for _ in range(ALL_POINTS if everything else POINTS):
                kill_during(lives, known, work, rng.uniform(0, longest_s))
                lives.start()
                for name in known.versions:
                    known.call(lives, name, -1)
                assert not known.wrong, known.wrong
        finally:
            happened(f"{activity} (seed {seed}): {lives.reported}")
        lives.end()


def kill_during(lives: Lives, known: Known, work: Work, after_s: float) -> None:
    """Kill the daemon while clients are at work. They see the end of their connections, and nothing wrong before."""
    started = threading.Barrier(CLIENTS + 1)
    stop = threading.Event()

    def client(number: int) -> None:
        started.wait(10)
        for turn in itertools.count():
            try:
                work(lives, known, number, turn)
            except (*GONE, IndexError, FileNotFoundError):
                return
            if stop.is_set():
                return

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(client, number) for number in range(CLIENTS)]
        started.wait(10)
        try:
            stop.wait(after_s)
            lives.kill()
        finally:
            stop.set()
        for each in clients:
            each.result(30)
    assert not known.wrong, known.wrong
