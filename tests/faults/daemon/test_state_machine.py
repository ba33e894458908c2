"""G14: Hypothesis drives a worker and a model of it, side by side, and compares what they say."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.daemon.running import Answer
from tests.faults.daemon.lives import Lives
from tests.faults.daemon.telling import TYPED
from tests.support.cases import Happened, case
from tests.support.servers.package_index import PackageIndex, wheel
from tests.support.worker_processes import look_at

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

LENGTH_S, ALL_LENGTH_S = 4.0, 180.0
STEPS, ALL_STEPS = 40, 80
HUGE = "huge"
"""A function that needs nearly all of the memory."""
NAMES = ("a", "b", "c", "d")
CONFIG = "[sandbox]\nmemory_mb = 256\npause_after_s = 0.005\n[zygote]\nspares = 1\nmemory_mb = 96\nmax_nodes = 2\n"
"""Room for three of the functions and their spares: a fourth is served when another is evicted."""
SLOW = "import time as _t\n_end = _t.perf_counter() + 0.02\nwhile _t.perf_counter() < _end: pass\n"
CODE = """
{imports}
import os
count = 0
instance = ""
def f(event):
    global count, instance
    instance = instance or os.urandom(8).hex()
    count += 1
    if event == "die":
        os._exit(3)
    return [{version}, event, instance, count]
"""
EVENTS = st.one_of(
    st.integers(-(2**53), 2**53), st.text(max_size=20), st.booleans(), st.none(), st.lists(st.integers())
)


class Worker(RuleBasedStateMachine):
    """Rules are what people and accidents do; `versions` is the model, `counts` what each process must say next."""

    lives: Lives
    tally: dict[str, int]
    everything: bool
    _versions = itertools.count(1)

    def __init__(self) -> None:
        super().__init__()
        self.versions: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        for function in self.lives.daemon.manage("GET", "/functions").json:
            if function["name"] != HUGE:
                self.lives.daemon.remove(function["name"])

    def is_forgiven(self, answer: Answer) -> bool:
        """One error with a type, for each kill: the worker may hear of several after the next requests."""
        forgiven = self._kills > 0 and answer.status != 200 and answer.json["errorType"] in TYPED
        if forgiven:
            self._kills -= 1
            self.count("errors after a kill")
        return forgiven

    def count(self, what: str) -> None:
        self.tally[what] = self.tally.get(what, 0) + 1

    @rule(name=st.sampled_from(NAMES), package=st.sampled_from(("", "lib0", "lib1")))
    def deploy(self, name: str, package: str) -> None:
        version = next(self._versions)
        files = {"f.py": CODE.format(version=version, imports=f"import {package}" if package else "")}
        self.lives.daemon.deploy(name, {**files, "requirements.txt": package}, memory_mb=80)
        self.count("redeploys" if name in self.versions else "deploys")
        self.versions[name] = version

    @rule(name=st.sampled_from(NAMES), events=st.lists(EVENTS, min_size=1, max_size=4))
    def invoke(self, name: str, events: list[object]) -> None:
        for event in events:
            self.count("invocations")
            answer = self.lives.daemon.run(name, event)
            if name not in self.versions:
                assert (answer.status, answer.json["errorType"]) == (404, "ResourceNotFoundException")
            elif not self.is_forgiven(answer):
                assert answer.status == 200, answer
                self.check_answer(name, event, answer.json)

    def check_answer(self, name: str, event: object, answer: list[Any]) -> None:
        version, echoed, instance, count = answer
        assert (version, echoed) == (self.versions[name], event)
        assert count == self.counts.get(instance, 0) + 1, "a process forgot, or had somebody else's request"
        self.counts[instance] = count

    @precondition(lambda self: self.versions)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """The handler ends its own process."""
        name = data.draw(st.sampled_from(sorted(self.versions)))
        answer = self.lives.daemon.run(name, "die")
        if not self.is_forgiven(answer):
            assert (answer.status, answer.json["errorType"]) == (502, "Runtime.ExitError"), answer
        self.count("crashes")

    _kills = 0
    """That no error was forgiven for."""

    @rule(kind=st.sampled_from(("sandbox", "sandbox", "zygote", "root zygote")), nth=st.integers(0, 5))
    def kill(self, kind: str, nth: int) -> None:
        """Somebody kills a process of the worker."""
        processes = [look_at(pid) for pid in sorted(self.lives.daemon.pids())]
        pids = [process.pid for process in processes if process is not None and process.kind == kind]
        if pids:
            with suppress(ProcessLookupError):
                os.kill(pids[nth % len(pids)], signal.SIGKILL)
            self._kills += 1
            self.count(f"kills of a {kind}")

    @rule()
    def evict(self) -> None:
        """Somebody needs nearly all of the memory."""
        answer = self.lives.daemon.run(HUGE, 1)
        assert answer.status == 200 or self.is_forgiven(answer), answer
        self.count("evictions of all")

    @precondition(lambda self: self.versions)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.versions)))
        self.lives.daemon.remove(name)
        del self.versions[name]
        self.count("removals")

    @precondition(lambda self: self.everything)
    @rule()
    def restart(self) -> None:
        """The daemon is killed."""
        self.lives.kill()
        self.lives.start()
        self.count("kills of the daemon")

    @invariant()
    def lists_agree(self) -> None:
        listed = {function["name"] for function in self.lives.daemon.manage("GET", "/functions").json}
        assert listed == {*self.versions, HUGE}
        status = self.lives.daemon.status()
        assert 0 <= status["memory"]["reserved_bytes"] <= 256 << 20


@pytest.fixture
def lives(state: Path, index: PackageIndex) -> Iterator[Lives]:
    for number in range(2):
        index.add(wheel(f"lib{number}", "1.0", {f"lib{number}.py": SLOW}))
    lives = Lives(state, index, CONFIG)
    try:
        lives.start().deploy(HUGE, "def f(event): return event", memory_mb=200)
        yield lives
    finally:
        lives.close()


@case(
    "G14",
    "Hypothesis deploys, invokes, redeploys, kills, evicts, removes (--all: restarts), for a while, beside a model",
    expect="worker and model agree on every answer, list and error",
)
def test_the_model_agrees(lives: Lives, happened: Happened, everything: bool) -> None:
    tally: dict[str, int] = {}
    machine = type("Worker", (Worker,), {"lives": lives, "tally": tally, "everything": everything})
    ends = time.monotonic() + (ALL_LENGTH_S if everything else LENGTH_S)
    profile = settings(
        max_examples=3,
        stateful_step_count=ALL_STEPS if everything else STEPS,
        deadline=None,
        database=None,
        # Kills make what happened once not happen again: a smaller example would be another one.
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    try:
        while time.monotonic() < ends:
            run_state_machine_as_test(machine, settings=profile)
    finally:
        happened(", ".join(f"{count} {what}" for what, count in sorted(tally.items(), key=lambda item: -item[1])))
    lives.end()
