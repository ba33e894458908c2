"""The deadline of a guest: whom it interrupts, and that a request which ends in time wakes nobody."""

from __future__ import annotations

import os
import time
from queue import Empty, SimpleQueue

import pytest

from sockd_zygote.handlers.wasm.deadline import Deadline

MS = 1_000_000


@pytest.fixture
def interrupted() -> SimpleQueue[int]:
    """The times of interrupts."""
    return SimpleQueue()


@pytest.fixture
def deadline(interrupted: SimpleQueue[int]) -> Deadline:
    return Deadline(lambda: interrupted.put(time.monotonic_ns()))


def test_what_runs_at_its_deadline_is_interrupted_once(deadline: Deadline, interrupted: SimpleQueue[int]) -> None:
    at = time.monotonic_ns() + 20 * MS
    deadline.set(at)
    assert interrupted.get(timeout=5) >= at
    deadline.clear()
    with pytest.raises(Empty):
        interrupted.get(timeout=0.05)


def test_what_has_ended_in_time_is_not_interrupted_and_the_next_one_is(
    deadline: Deadline, interrupted: SimpleQueue[int]
) -> None:
    deadline.set(time.monotonic_ns() + 20 * MS)
    deadline.clear()
    at = time.monotonic_ns() + 60 * MS
    deadline.set(at)
    assert interrupted.get(timeout=5) >= at


def test_a_deadline_that_is_earlier_than_the_last_one_is_kept(
    deadline: Deadline, interrupted: SimpleQueue[int]
) -> None:
    deadline.set(time.monotonic_ns() + 3600_000 * MS)
    deadline.clear()
    deadline.set(time.monotonic_ns() + 10 * MS)
    assert interrupted.get(timeout=5)


def test_one_thread_serves_all_requests(deadline: Deadline) -> None:
    before = len(os.listdir("/proc/self/task"))
    for _ in range(100):
        deadline.set(time.monotonic_ns() + 3600_000 * MS)
        deadline.clear()
    assert len(os.listdir("/proc/self/task")) == before + 1
