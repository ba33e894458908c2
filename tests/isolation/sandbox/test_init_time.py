"""The time limit of an init: what the sandbox waits for a processor that others use does not count, and all else does."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from sockd.base.errors import TimedOut
from sockd.isolation.sandbox.init_time import left_s, waited_s
from sockd.linux.processes.cpu_times import CpuTimes, read_cpu_times
from tests.support.harness import Harness

CPU_S = 0.6
LIMIT_S = 0.8
BURNERS = 8
"""Processes that compete with one sandbox for two processors, or more: it gets less than half of one."""
BURNS = f"""
import time
while time.process_time() < {CPU_S}:
    pass

def handler(event):
    return "ok"
"""
LATER = f"""
import time

def handler(event):
    end_s = time.process_time() + {CPU_S}
    while time.process_time() < end_s:
        pass
    return "ok"
"""
FOR_EVER = "while True: pass\n"
SLEEPS = "import threading\nthreading.Event().wait()\n"


def times(used_s: float, delayed_s: float) -> CpuTimes:
    return CpuTimes(round(used_s * 1e9), round(delayed_s * 1e9))


@pytest.mark.parametrize(
    ("elapsed_s", "used_s", "delayed_s", "cpus", "waited"),
    [
        (10, 10, 0, 1, 0),  # it computed
        (10, 0, 0, 1, 0),  # it slept
        (10, 2, 8, 1, 8),  # others had the processors
        (10, 2, 5, 1, 5),  # and it slept 3 s
        (10, 2, 8, 0.2, 0),  # it had all that its quota allows
        (10, 1, 9, 0.2, 5),  # its quota alone would have taken 5 s
        (10, 10, 7.5, 1, 0),  # four threads of it share its quota
        (10, 20, 0, 4, 0),
        (1, 0.1, 30, 1, 0.9),  # it waited before it was a function, too
    ],
)
def test_what_counts_as_waiting(elapsed_s: float, used_s: float, delayed_s: float, cpus: float, waited: float) -> None:
    assert waited_s(elapsed_s, times(used_s, delayed_s), cpus) == pytest.approx(waited)


@pytest.mark.parametrize(
    ("elapsed_s", "waited", "left"),
    [(10, 0, 0), (10, 4, 4), (12, 5, 3), (60, 55, 0), (10, 60, 50), (10, 0.005, 0)],
)
def test_an_init_goes_on_for_as_long_as_it_waited_up_to_the_ceiling(
    elapsed_s: float, waited: float, left: float
) -> None:
    assert left_s(10, 60, elapsed_s, waited) == pytest.approx(left)


def test_threads_that_are_gone_have_no_times() -> None:
    assert read_cpu_times([2**22 + 1]) == CpuTimes(0, 0)


@contextmanager
def burning() -> Iterator[None]:
    """All processors are used by others, each with a session of its own: those of one share their time (autogroups, sched(7))."""
    command = [sys.executable, "-c", FOR_EVER]
    burners = [subprocess.Popen(command, start_new_session=True) for _ in range(BURNERS)]
    try:
        yield
    finally:
        for each in burners:
            each.kill()
        for each in burners:
            each.wait()


@pytest.mark.root
@pytest.mark.alone
@pytest.mark.parametrize("spare", [False, True])
def test_an_init_that_others_delay_is_not_ended_for_it(harness: Harness, spare: bool) -> None:
    began_s = time.monotonic()
    with burning():
        running = harness.start(BURNS, init_timeout_s=LIMIT_S, spare=spare)
        assert running.answer() == "ok"
    assert time.monotonic() - began_s > LIMIT_S, "nothing delayed it: the machine has more processors than burners"


@pytest.mark.root
@pytest.mark.alone
def test_the_ceiling_ends_an_init_that_waits(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "parts", replace(harness.parts, init_ceiling=2))
    with burning():
        running = harness.start(FOR_EVER, init_timeout_s=LIMIT_S)
        began_s = time.monotonic()
        error = running.request().error
    assert 2 * LIMIT_S - 0.1 < time.monotonic() - began_s < 2 * LIMIT_S + 2
    assert isinstance(error, TimedOut)
    assert error.message.startswith("Init timed out after 0.80 seconds, not counting 0.")
    assert error.message.endswith(" seconds in which it waited for a processor (init_timeout_s)")


@pytest.mark.root
@pytest.mark.alone
def test_an_init_that_sleeps_waits_for_no_processor(harness: Harness) -> None:
    with burning():
        running = harness.start(SLEEPS, init_timeout_s=LIMIT_S)
        began_s = time.monotonic()
        error = running.request().error
        took_s = time.monotonic() - began_s
    assert isinstance(error, TimedOut) and took_s < 2.5 * LIMIT_S


@pytest.mark.root
@pytest.mark.alone
@pytest.mark.parametrize("is_trial", [True, False])
def test_the_request_of_a_trial_has_the_deadline_of_an_init(
    harness: Harness, is_trial: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "parts", replace(harness.parts, init_ceiling=30))
    program = harness.program(LATER, init_timeout_s=LIMIT_S, timeout_s=LIMIT_S)
    program.is_trial = is_trial
    with burning():
        error = harness.start(program).request().error
    assert isinstance(error, TimedOut) != is_trial
