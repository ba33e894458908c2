"""A finer tick: while requests come and the processors are crowded, and at no other time.

Files stand in /proc's place, as others make a machine crowded, too."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sockd.kernel.run_queues import RunQueues
from sockd.sandbox.hrtick import (
    CROWDED_LOOKS,
    LASTS_S,
    LOOK_S,
    QUIET_S,
    REQUESTS_HZ,
    STARTS_HZ,
    HrTick,
    tick_s,
)

pytestmark = pytest.mark.anyio
PROCESSORS = 2


class Machine:
    """One with as many runnable threads as it is told, and a tick that notes until when it is wanted."""

    def __init__(self, directory: Path) -> None:
        self._loadavg = directory / "loadavg"
        self.wanted: list[int] = []
        self.crowd(PROCESSORS)
        self.hrtick = CountedHrTick(RunQueues.open(str(self._loadavg)), PROCESSORS, self.wanted.append)

    @property
    def looks(self) -> int:
        return self.hrtick.looks

    def crowd(self, runnable: int) -> None:
        self._loadavg.write_text(f"0.0 0.0 0.0 {runnable}/80 1\n")

    async def turn_until(self, looks: int) -> None:
        """Let the loop turn until there were so many looks at the run queues."""
        while self.looks < looks:
            await asyncio.sleep(0)

    async def turn_for(self, seconds: float) -> None:
        """Let the loop turn for so long."""
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            await asyncio.sleep(0)


class CountedHrTick(HrTick):
    looks = 0

    def _look(self) -> None:
        self.looks += 1
        super()._look()


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.hrtick.close()


@pytest.mark.parametrize("is_start", [False, True])
async def test_it_ticks_while_requests_come_in_a_crowd(machine: Machine, is_start: bool) -> None:
    machine.hrtick.note(is_start=is_start)
    while not machine.wanted:
        await asyncio.sleep(0)
    assert machine.looks == 1 + CROWDED_LOOKS  # the first knows nothing of what came before
    assert 0 < machine.wanted[0] / 1e9 - time.monotonic() <= LASTS_S
    await machine.turn_until(machine.looks + 2)
    assert len(machine.wanted) > 1
    assert machine.wanted == sorted(machine.wanted)


async def test_where_no_processor_is_wanted_by_two_there_is_none(machine: Machine) -> None:
    machine.crowd(PROCESSORS - 1)
    machine.hrtick.note(is_start=False)
    await machine.turn_until(2 * CROWDED_LOOKS)
    assert machine.wanted == []


async def test_a_crowd_of_a_moment_is_none(machine: Machine) -> None:
    machine.hrtick.note(is_start=False)
    for _ in range(3):
        machine.crowd(PROCESSORS)
        await machine.turn_until(machine.looks + CROWDED_LOOKS - 1)
        machine.crowd(1)
        await machine.turn_until(machine.looks + 1)
    assert machine.wanted == []


@pytest.mark.parametrize(("is_start", "most_hz"), [(False, REQUESTS_HZ), (True, STARTS_HZ)])
async def test_many_requests_have_no_use_for_it(machine: Machine, is_start: bool, most_hz: float) -> None:
    many = math.ceil(PROCESSORS * most_hz * LASTS_S) + 1
    for _ in range(3 * CROWDED_LOOKS):
        for _ in range(many):
            machine.hrtick.note(is_start=is_start)
        await machine.turn_until(machine.looks + 1)
    assert machine.wanted == []
    while not machine.wanted:
        await asyncio.sleep(0)


async def test_when_no_more_requests_come_nobody_looks(machine: Machine) -> None:
    machine.hrtick.note(is_start=False)
    await machine.turn_for(QUIET_S + 5 * LOOK_S)
    looks = machine.looks
    await machine.turn_for(5 * LOOK_S)
    assert machine.looks == looks
    machine.hrtick.note(is_start=False)
    await machine.turn_until(looks + 1)


async def test_closed_it_does_nothing(machine: Machine) -> None:
    machine.hrtick.note(is_start=False)
    machine.hrtick.close()
    machine.hrtick.note(is_start=False)
    machine.hrtick.close()
    await machine.turn_for(3 * LOOK_S)
    assert (machine.looks, machine.wanted) == (0, [])


async def test_without_run_queues_nothing_happens() -> None:
    hrtick = HrTick()
    hrtick.note(is_start=False)
    hrtick.close()


def test_the_kernels_tick_is_a_fraction_of_a_second() -> None:
    assert 0.0005 <= tick_s() <= 0.01
