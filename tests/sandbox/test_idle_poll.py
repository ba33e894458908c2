"""Polling: on from the first start to the last answer, a moment at most, and the kernel is told as seldom as that takes.

A file stands in the device's place, as other workers of the machine ask for latencies, too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sockd.kernel.cpu_latency import CpuLatency
from sockd.sandbox.idle_poll import LONGEST_S, IdlePoll

pytestmark = pytest.mark.anyio


class CountedLatency(CpuLatency):
    """Knows how often it was told to forbid sleep."""

    times = 0

    def forbid(self) -> None:
        self.times += 1
        super().forbid()


class Told:
    """A poll, and what it told the kernel."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self.read = CpuLatency.open(str(path))
        self.latency = CountedLatency.open(str(path))
        self.latency.allow()
        self.idle_poll = IdlePoll(self.latency)

    @property
    def is_on(self) -> bool:
        return self.read.allowed_us() == 0


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[Told]:
    told = Told(tmp_path / "latency")
    yield told
    told.idle_poll.close()
    told.read.close()


async def test_it_is_on_while_a_start_is_under_way(told: Told) -> None:
    assert not told.is_on
    for _ in range(2):
        told.idle_poll.begin()
        assert told.is_on
        told.idle_poll.end()
        assert not told.is_on


async def test_of_many_at_once_the_first_begins_it_and_the_last_ends_it(told: Told) -> None:
    for _ in range(3):
        told.idle_poll.begin()
    for _ in range(2):
        told.idle_poll.end()
        assert told.is_on
    told.idle_poll.end()
    assert not told.is_on and told.latency.times == 1


async def test_for_one_that_is_not_answered_it_ends_by_itself_and_the_next_begins_it_again(told: Told) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    told.idle_poll.begin()
    while told.is_on:
        await asyncio.sleep(0)
    assert loop.time() - began_s >= LONGEST_S / 2  # the loop's clock counts whole ms
    told.idle_poll.begin()
    assert told.is_on
    told.idle_poll.end()
    told.idle_poll.end()
    assert not told.is_on


async def test_each_start_has_its_time(told: Told) -> None:
    """The timer of one that was answered does not end that of the next."""
    told.idle_poll.begin()
    told.idle_poll.end()
    loop = asyncio.get_running_loop()
    half_over_s = loop.time() + LONGEST_S / 2
    while loop.time() < half_over_s:
        await asyncio.sleep(0)
    told.idle_poll.begin()
    began_s = loop.time()
    while told.is_on:
        await asyncio.sleep(0)
    assert loop.time() - began_s > LONGEST_S / 2


async def test_closed_it_asks_for_nothing_and_does_nothing(told: Told) -> None:
    told.idle_poll.begin()
    told.idle_poll.close()
    told.idle_poll.end()
    told.idle_poll.begin()
    assert told.latency.times == 1


async def test_without_a_device_nothing_happens() -> None:
    idle_poll = IdlePoll()
    idle_poll.begin()
    idle_poll.end()
    idle_poll.close()
