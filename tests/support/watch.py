"""What a well-behaved function's caller notices while something else happens: how long its calls took, and wrong answers."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness.results import quantile
from tests.support.caller import ENDLESS, Caller

ENOUGH = 200
"""Calls whose 99th percentile is worth telling."""
ROUNDS = 50
"""Most times that something is done again until there were so many."""


class Watch:
    """One measurement by a caller, which begins with `begin`; what came of it is there after `end`."""

    def __init__(self, caller: Caller, baseline: list[float]) -> None:
        """Args: baseline: ms of undisturbed calls, which `ratio` compares with."""
        self.caller = caller
        self._baseline = baseline
        self.ms: list[float] = []
        self.wrong: list[str] = []
        """Answers that were not the right one."""

    @classmethod
    def undisturbed(cls, caller: Caller, gap_s: float, calls: int) -> list[float]:
        """Sorted ms of so many calls while nothing else happens."""
        watch = cls(caller, [])
        watch.begin(gap_s, calls)
        watch.take_result()
        return sorted(watch.ms)

    def begin(self, gap_s: float, most: int = ENDLESS) -> None:
        self.caller.tell(f"{gap_s} {most}")

    def rounds(self) -> Iterator[int]:
        """Between `begin` and `end`: once, and again until there were enough calls, but not for ever."""
        for number in range(ROUNDS):
            yield number
            if self.caller.wait_for(0) >= ENOUGH:
                return

    def end(self) -> None:
        self.caller.tell("stop")
        self.take_result()

    def take_result(self) -> None:
        """Wait until as many calls are made as `begin` has asked for."""
        result = self.caller.answer()
        self.ms, self.wrong = result["ms"], result["wrong"]

    @staticmethod
    def quantile(values: list[float], share: float) -> float:
        """0 for none."""
        return quantile(sorted(values), share) if values else 0.0

    @property
    def p50(self) -> float:
        return self.quantile(self.ms, 0.5)

    @property
    def p99(self) -> float:
        return self.quantile(self.ms, 0.99)

    @property
    def undisturbed_p99(self) -> float:
        return self.quantile(self._baseline, 0.99)

    @property
    def ratio(self) -> float:
        """p99 now, in units of the undisturbed one."""
        return self.p99 / max(self.undisturbed_p99, 1e-6)

    def __str__(self) -> str:
        return f"neighbour p99 {self.p99:.1f} ms, {self.ratio:.1f}x ({len(self.ms)} calls, {len(self.wrong)} wrong)"
