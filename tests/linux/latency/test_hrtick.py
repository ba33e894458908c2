"""A finer tick: while requests come and the processors are taken, and at no other time.

A file stands in /proc/loadavg's place, as other programs make a machine crowded, too; a clock in the kernel's place.
No test runs a loop: whatever sets a timer fails here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from sockd.linux.latency import hrtick as hrtick_module
from sockd.linux.latency.hrtick import (
    CROWDED_LOOKS,
    FORGETS_S,
    LASTS_S,
    LOOK_S,
    REQUESTS_HZ,
    STARTS_HZ,
    HrTick,
    tick_s,
)
from sockd.linux.processes.run_queues import RunQueues

PROCESSORS = 2


class Machine:
    """Has as many runnable threads as the test says, and records until when a tick is wanted."""

    def __init__(self, directory: Path) -> None:
        self._loadavg = directory / "loadavg"
        self.now_s = 1000.0
        self.wanted: list[int] = []
        self.readings = 0
        self.crowd(PROCESSORS)
        self.hrtick = HrTick(CountedRunQueues.of(self, str(self._loadavg)), PROCESSORS, self.wanted.append)

    def crowd(self, runnable: int) -> None:
        self._loadavg.write_text(f"0.0 0.0 0.0 {runnable}/80 1\n")

    def requests(self, count: int, *, gap_s: float, starts: bool = False) -> None:
        """So many requests, each so long after the one before."""
        for _ in range(count):
            self.now_s += gap_s
            self.hrtick.request_begun()
            if starts:
                self.hrtick.start_begun()


class CountedRunQueues(RunQueues):
    machine: Machine

    @classmethod
    def of(cls, machine: Machine, path: str) -> CountedRunQueues:
        run_queues = cls.open(path)
        run_queues.machine = machine
        return run_queues

    def runnable(self) -> int:
        self.machine.readings += 1
        return super().runnable()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    monkeypatch.setattr(hrtick_module, "time", SimpleNamespace(monotonic=lambda: machine.now_s))
    yield machine
    machine.hrtick.close()


def test_it_ticks_while_requests_come_in_a_crowd(machine: Machine) -> None:
    machine.requests(CROWDED_LOOKS, gap_s=2 * LOOK_S)  # the first knows nothing of what came before
    assert machine.wanted == []
    machine.requests(3, gap_s=2 * LOOK_S)
    assert len(machine.wanted) == 3
    assert machine.wanted[-1] / 1e9 - machine.now_s == pytest.approx(LASTS_S)


def test_where_no_processor_is_wanted_by_two_there_is_none(machine: Machine) -> None:
    machine.crowd(PROCESSORS - 1)
    machine.requests(5 * CROWDED_LOOKS, gap_s=2 * LOOK_S)
    assert machine.wanted == []


def test_a_crowd_of_a_moment_is_none(machine: Machine) -> None:
    machine.requests(1, gap_s=2 * LOOK_S)
    for _ in range(3):
        machine.crowd(PROCESSORS)
        machine.requests(CROWDED_LOOKS - 1, gap_s=2 * LOOK_S)
        machine.crowd(1)
        machine.requests(1, gap_s=2 * LOOK_S)
    assert machine.wanted == []


@pytest.mark.parametrize(("starts", "most_hz"), [(False, REQUESTS_HZ), (True, STARTS_HZ)])
def test_many_requests_have_no_use_for_it(machine: Machine, starts: bool, most_hz: float) -> None:
    many = math.ceil(PROCESSORS * most_hz) + 1
    machine.requests(many, gap_s=1 / many, starts=starts)
    machine.wanted.clear()  # until the rate was known
    machine.requests(many, gap_s=1 / many, starts=starts)
    assert machine.wanted == []
    machine.requests(50, gap_s=2 * LOOK_S)
    assert machine.wanted != []


def test_rare_requests_never_make_it_tick(machine: Machine) -> None:
    machine.requests(100, gap_s=FORGETS_S * 1.01)
    assert (machine.wanted, machine.readings) == ([], 0)


def test_the_run_queues_are_read_every_5_ms_at_most(machine: Machine) -> None:
    machine.requests(1000, gap_s=LOOK_S / 10)
    assert 90 <= machine.readings <= 101


def test_closed_it_does_nothing(machine: Machine) -> None:
    machine.hrtick.close()
    machine.requests(100, gap_s=2 * LOOK_S)
    machine.hrtick.close()
    assert (machine.readings, machine.wanted) == (0, [])


def test_the_kernels_tick_is_a_fraction_of_a_second() -> None:
    assert 0.0005 <= tick_s() <= 0.01
