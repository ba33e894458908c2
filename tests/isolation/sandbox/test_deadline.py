"""A deadline: it passes when it was set to, however many were set and kept before on the same timer."""

from __future__ import annotations

from typing import Any

import pytest

from sockd.isolation.sandbox.deadline import Deadline
from tests.support.fake_clock import FakeClock, FakeTimer


class Loop:
    """A loop's clock and timers, by the clock of a test."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.timers = 0

    def time(self) -> float:
        return self.clock.monotonic()

    def call_later(self, delay_s: float, callback: Any) -> FakeTimer:
        self.timers += 1
        return self.clock.call_later(delay_s, callback)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def deadline(loop: Loop) -> Deadline:
    return Deadline(loop)  # type: ignore[arg-type]


def test_one_that_is_kept_never_passes(loop: Loop, deadline: Deadline) -> None:
    passed: list[str] = []
    deadline.set(3, lambda: passed.append("late"))
    deadline.clear()
    loop.clock.pass_by(100)
    assert passed == []


def test_a_thousand_that_are_kept_share_a_timer_and_the_next_passes_at_its_moment(
    loop: Loop, deadline: Deadline
) -> None:
    passed: list[float] = []
    for _ in range(1000):
        deadline.set(3, lambda: passed.append(loop.time()))
        loop.clock.pass_by(0.001)
        deadline.clear()
    assert loop.timers == 1
    deadline.set(3, lambda: passed.append(loop.time()))
    due = loop.time() + 3
    loop.clock.pass_by(2.999)
    assert passed == []
    loop.clock.pass_by(0.002)
    assert passed == [pytest.approx(due, abs=0.0001)]
    loop.clock.pass_by(100)
    assert len(passed) == 1


def test_an_earlier_one_does_not_wait_for_the_timer_of_a_later(loop: Loop, deadline: Deadline) -> None:
    passed: list[str] = []
    deadline.set(900, lambda: passed.append("init"))
    deadline.set(1, lambda: passed.append("request"))
    assert deadline.left_s() == 1
    loop.clock.pass_by(1)
    assert passed == ["request"]
    loop.clock.pass_by(1000)
    assert passed == ["request"]


def test_a_closed_one_never_passes(loop: Loop, deadline: Deadline) -> None:
    passed: list[str] = []
    deadline.set(1, lambda: passed.append("late"))
    deadline.close()
    deadline.close()
    loop.clock.pass_by(10)
    assert passed == []


def test_one_that_was_shortened_can_be_restored(loop: Loop, deadline: Deadline) -> None:
    passed: list[str] = []
    deadline.set(3, lambda: passed.append("whole"))
    deadline.shorten(1, lambda: passed.append("shortened"))
    deadline.restore()
    deadline.restore()
    loop.clock.pass_by(2.9)
    assert passed == []
    loop.clock.pass_by(0.2)
    assert passed == ["whole"]


@pytest.mark.parametrize(("delay_s", "passes_s"), [(1, 1), (5, 3)])
def test_one_that_is_shortened_passes_no_later_than_before(
    loop: Loop, deadline: Deadline, delay_s: float, passes_s: float
) -> None:
    passed: list[str] = []
    deadline.set(3, lambda: passed.append("whole"))
    deadline.shorten(delay_s, lambda: passed.append("shortened"))
    loop.clock.pass_by(passes_s + 0.01)
    assert passed == ["shortened"]
    deadline.set(1, lambda: passed.append("next"))
    deadline.restore()
    loop.clock.pass_by(1.01)
    assert passed == ["shortened", "next"]
