"""The vigil: kept for one quick answer at a time, a moment at most, and not again soon when it was of no use."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sockd.sandbox import vigil
from sockd.sandbox.exchange import Exchange
from sockd.sandbox.vigil import LONGEST_NS, QUICK_NS, REST_NS, Vigil


class Loop:
    """Turns when it is told to; each takes 10 µs."""

    def __init__(self) -> None:
        self.now_ns = 10**12
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self.soon.append(lambda: callback(*arguments))

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.now_ns += 10_000
            soon, self.soon = self.soon, []
            for callback in soon:
                callback()

    @property
    def is_awake(self) -> bool:
        """It will turn once more without sleeping."""
        return bool(self.soon)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    loop = Loop()
    monkeypatch.setattr(vigil, "time", SimpleNamespace(monotonic_ns=lambda: loop.now_ns))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    return loop


def ask(kept: Vigil, loop: Loop, last_ns: int = QUICK_NS) -> Exchange:
    """A request under way."""
    exchange = Exchange(1, lambda reply: None)
    kept.keep(exchange, last_ns, loop)  # type: ignore[arg-type]
    return exchange


def test_the_loop_turns_until_the_answer(loop: Loop) -> None:
    kept = Vigil()
    for _ in range(3):
        exchange = ask(kept, loop)
        loop.turn(5)
        assert loop.is_awake
        exchange.is_over = True
        loop.turn()
        assert not loop.is_awake


@pytest.mark.parametrize("last_ns", [0, QUICK_NS + 1])
def test_a_handler_that_is_new_or_slow_is_not_waited_for(loop: Loop, last_ns: int) -> None:
    ask(Vigil(), loop, last_ns)
    assert not loop.is_awake


def test_with_one_processor_it_sleeps(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    ask(Vigil(), loop)
    assert not loop.is_awake


def test_an_answer_that_does_not_come_is_given_up_and_the_next_is_not_waited_for(loop: Loop) -> None:
    kept = Vigil()
    ask(kept, loop)
    loop.turn(LONGEST_NS // 10_000)
    assert not loop.is_awake
    ask(kept, loop)
    assert not loop.is_awake
    loop.now_ns += REST_NS
    ask(kept, loop)
    assert loop.is_awake


def test_two_at_a_time_are_not_waited_for(loop: Loop) -> None:
    kept = Vigil()
    ask(kept, loop)
    ask(kept, loop)
    loop.turn()
    assert not loop.is_awake
    ask(kept, loop)
    assert not loop.is_awake
