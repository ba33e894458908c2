"""When a service that has failed is started again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_S, LONGEST_S = 0.2, 60.0
STABLE_S = 10.0
"""A program that ran for so long before it ended is started again as after its first failure."""


@dataclass(slots=True)
class Backoff:
    """The failures of one service in a row."""

    failures: int = 0
    due_s: float = 0.0
    """When the next start may begin, by the clock of the event loop."""

    def note_failure(self, now_s: float, ran_s: float = 0.0) -> None:
        """Count a failed start, or the end of a program. Args: ran_s: how long the program was ready."""
        self.failures = 1 if ran_s >= STABLE_S else self.failures + 1
        self.due_s = now_s + delay_s(self.failures)

    def forget(self) -> None:
        """Begin anew: there is another version."""
        self.failures, self.due_s = 0, 0.0

    def left_s(self, now_s: float) -> float:
        """How long the next start has to wait, in seconds."""
        return max(0.0, self.due_s - now_s)


def delay_s(failures: int) -> float:
    """POLICY: the wait after so many failures in a row: twice the one before, up to a minute."""
    return min(FIRST_S * 2 ** min(failures - 1, 16), LONGEST_S) if failures else 0.0
