"""A finer tick: while a request has been under way for long and the processors are crowded, and at no other time.

Files stand in /proc's place, as others make a machine crowded, too."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sockd.kernel.run_queues import Look, RunQueues
from sockd.sandbox.exchange import Exchange
from sockd.sandbox.hrtick import LASTS_S, LONG_S, LOOK_S, OFTEN_HZ, QUIET_S, HrTick, tick_s

pytestmark = pytest.mark.anyio
PROCESSORS = 2


class Machine:
    """One with as many runnable threads and switches a second as it is told, and a tick that notes until when it is wanted."""

    def __init__(self, directory: Path) -> None:
        self._loadavg, self._stat = directory / "loadavg", directory / "stat"
        self._loadavg.write_text("0.0 0.0 0.0 1/80 1\n")
        self._stat.touch()
        self.switches_hz = 0.0
        self.wanted: list[int] = []
        self.looks = 0
        run_queues = CountedRunQueues.open(str(self._loadavg), str(self._stat))
        run_queues.machine = self
        self.hrtick = HrTick(run_queues, PROCESSORS, self.wanted.append)
        self.crowd(PROCESSORS)

    def crowd(self, runnable: int) -> None:
        self._loadavg.write_text(f"0.0 0.0 0.0 {runnable}/80 1\n")

    def looked_at(self) -> None:
        self.looks += 1
        self._stat.write_text(f"cpu\nctxt {int(time.monotonic() * self.switches_hz)}\n")

    async def turn_until(self, looks: int) -> None:
        """Let the loop turn until there were so many looks at the run queues."""
        while self.looks < looks:
            await asyncio.sleep(0)

    async def turn_for(self, seconds: float) -> None:
        """Let the loop turn for so long."""
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            await asyncio.sleep(0)


class CountedRunQueues(RunQueues):
    machine: Machine

    def look(self) -> Look:
        self.machine.looked_at()
        return super().look()


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.hrtick.close()


def exchange(number: int = 1) -> Exchange:
    return Exchange(number, lambda reply: None)


async def test_it_ticks_while_a_long_request_is_under_way_in_a_crowd(machine: Machine) -> None:
    long, began_s = exchange(), time.monotonic()
    machine.hrtick.note("sandbox", long)
    while not machine.wanted:
        await asyncio.sleep(0)
    assert time.monotonic() - began_s >= LONG_S
    assert 0 < machine.wanted[0] / 1e9 - time.monotonic() <= LASTS_S
    while len(machine.wanted) < 3:
        await asyncio.sleep(0)
    assert machine.wanted == sorted(machine.wanted)
    long.is_over = True
    await machine.turn_for(LOOK_S)
    wanted = len(machine.wanted)
    await machine.turn_for(3 * LOOK_S)
    assert len(machine.wanted) == wanted


async def test_for_short_requests_it_does_not(machine: Machine) -> None:
    ends_s = time.monotonic() + 5 * LOOK_S
    while time.monotonic() < ends_s:
        short = exchange()
        machine.hrtick.note("sandbox", short)
        await asyncio.sleep(0)
        short.is_over = True
    assert machine.wanted == []


@pytest.mark.parametrize(
    ("runnable", "switches_hz"), [(PROCESSORS - 1, 0.0), (PROCESSORS, OFTEN_HZ * PROCESSORS * 1.5)]
)
async def test_where_nobody_waits_for_a_tick_there_is_none(machine: Machine, runnable: int, switches_hz: float) -> None:
    machine.crowd(runnable)
    machine.switches_hz = switches_hz
    long = exchange()
    machine.hrtick.note("sandbox", long)
    await machine.turn_until(5)
    assert machine.wanted == []


async def test_its_own_switches_count_for_nothing(machine: Machine) -> None:
    """Else it would end as soon as it has begun."""
    machine.switches_hz = (OFTEN_HZ - 1000) * PROCESSORS
    long = exchange()
    machine.hrtick.note("sandbox", long)
    while not machine.wanted:
        await asyncio.sleep(0)
    machine.switches_hz += 4000 * PROCESSORS
    await machine.turn_until(machine.looks + 1)  # its count jumps here, as it is made of the clock
    wanted = len(machine.wanted)
    await machine.turn_until(machine.looks + 2)
    assert len(machine.wanted) > wanted


async def test_a_long_request_is_known_when_others_come_later(machine: Machine) -> None:
    long = exchange(1)
    machine.hrtick.note("computes", long)
    await machine.turn_for(QUIET_S + 3 * LOOK_S)
    looks, wanted = machine.looks, len(machine.wanted)
    await machine.turn_for(3 * LOOK_S)
    assert (machine.looks, len(machine.wanted)) == (looks, wanted)  # nobody else asks, so nobody waits
    machine.hrtick.note("another", exchange(2))
    await machine.turn_until(looks + 2)
    assert len(machine.wanted) > wanted


async def test_it_keeps_no_request_that_is_over(machine: Machine) -> None:
    long = exchange()
    machine.hrtick.note("sandbox", long)
    await machine.turn_until(1)
    seen = weakref.ref(long)
    del long
    await machine.turn_for(2 * LOOK_S)
    gc.collect()
    assert seen() is None


async def test_closed_it_does_nothing(machine: Machine) -> None:
    machine.hrtick.note("sandbox", exchange())
    machine.hrtick.close()
    machine.hrtick.note("sandbox", exchange())
    machine.hrtick.close()
    await machine.turn_for(3 * LOOK_S)
    assert (machine.looks, machine.wanted) == (0, [])


async def test_without_run_queues_nothing_is_kept() -> None:
    hrtick = HrTick()
    noted = exchange()
    hrtick.note("sandbox", noted)
    seen = weakref.ref(noted)
    del noted
    assert seen() is None
    hrtick.close()


def test_the_kernels_tick_is_a_fraction_of_a_second() -> None:
    assert 0.0005 <= tick_s() <= 0.01
