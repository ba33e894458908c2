"""Threads that tick: one on each processor, awake only while they are wanted, and gone when they are stopped."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from sockd.linux import _hrtick
from tests.support.emulated import not_in_uml
from tests.support.kernel_threads import may_be_real_time, slept_by, threads_of

PERIOD_NS = 1_000_000
PREFIX = "hrtick/"
PROCESSORS = sorted(os.sched_getaffinity(0))


@pytest.fixture
def ticking() -> Iterator[None]:
    _hrtick.start(PROCESSORS, PERIOD_NS)
    yield
    _hrtick.stop()


def tick_for(duration_ns: int) -> int:
    """Let them; how often they woke until that was over."""
    before = slept_by(os.getpid(), PREFIX)
    _hrtick.run_until(time.monotonic_ns() + duration_ns)
    while slept_by(os.getpid(), PREFIX) - before < duration_ns // PERIOD_NS * len(PROCESSORS) // 2:
        pass
    return slept_by(os.getpid(), PREFIX) - before


@pytest.mark.usefixtures("ticking")
def test_there_is_one_on_each_processor_that_takes_no_signals() -> None:
    threads = threads_of(os.getpid(), PREFIX)
    assert sorted(thread.processors for thread in threads) == sorted(map(str, PROCESSORS))
    assert {thread.name for thread in threads} == {f"{PREFIX}{processor}" for processor in PROCESSORS}
    assert all(thread.blocked >> (signal.SIGTERM - 1) & 1 for thread in threads)
    mine = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.SIGTERM not in mine


@pytest.mark.usefixtures("ticking")
def test_they_go_before_others_where_they_may() -> None:
    wanted, ends_s = {os.SCHED_FIFO if may_be_real_time() else os.SCHED_OTHER}, time.monotonic() + 30
    while policies() != wanted and time.monotonic() < ends_s:  # each says what it is when it first runs
        tick_for(10 * PERIOD_NS)
    assert policies() == wanted


def policies() -> set[int]:
    return {os.sched_getscheduler(thread.tid) for thread in threads_of(os.getpid(), PREFIX)}


@not_in_uml("has timers of 10 ms")
@pytest.mark.usefixtures("ticking")
def test_they_tick_until_they_were_asked_and_sleep_then() -> None:
    assert tick_for(100 * PERIOD_NS) <= 102 * len(PROCESSORS)
    _hrtick.run_until(0)
    before, ends_ns = slept_by(os.getpid(), PREFIX), time.monotonic_ns() + 20 * PERIOD_NS
    while time.monotonic_ns() < ends_ns:
        # One may have been in the middle of its last period, and goes to bed behind it.
        assert slept_by(os.getpid(), PREFIX) - before <= 2 * len(PROCESSORS)


@pytest.mark.usefixtures("ticking")
def test_there_is_one_set_of_them() -> None:
    with pytest.raises(ValueError, match="run already"):
        _hrtick.start(PROCESSORS, PERIOD_NS)
    assert len(threads_of(os.getpid(), PREFIX)) == len(PROCESSORS)


def test_stopped_they_are_gone_and_may_come_again() -> None:
    for _ in range(2):
        _hrtick.start(PROCESSORS, PERIOD_NS)
        _hrtick.run_until(time.monotonic_ns() + 1_000 * PERIOD_NS)
        _hrtick.stop()
        _hrtick.stop()
        assert threads_of(os.getpid(), PREFIX) == []


@pytest.mark.parametrize("wrong", [1 << 20, -1])
def test_where_one_cannot_be_had_none_is_left(wrong: int) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        _hrtick.start([*PROCESSORS, wrong], PERIOD_NS)
    assert threads_of(os.getpid(), PREFIX) == []


def test_a_period_is_some_time() -> None:
    with pytest.raises(ValueError, match="more than 0 ns"):
        _hrtick.start(PROCESSORS, 0)
