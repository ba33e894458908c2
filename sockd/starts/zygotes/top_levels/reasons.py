"""Why versions are not recorded, or have no Zygote: the last reason of each, in words for people.

Owns nothing else, decides nothing, and is lost with the daemon: what it says is found out again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

MAX_REASONS = 4096
"""Versions that a reason is remembered of, the oldest dropped first."""


class Reasons:
    """One reason for each version (`ImportView.program`)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: clock: the clock of the times that `note` gets for the next try."""
        self._clock = clock
        self._of: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def note(self, program: str, words: str, *, again_in_s: float | None = None) -> None:
        """Remember why, in the place of an earlier reason. Args: again_in_s: until the next attempt; None: none is planned."""
        self._of[program] = words, self._clock() + again_in_s if again_in_s is not None else 0.0
        self._of.move_to_end(program)
        while len(self._of) > MAX_REASONS:
            self._of.popitem(last=False)

    def forget(self, program: str) -> None:
        """What a reason was given for has been done."""
        self._of.pop(program, None)

    def find(self, program: str) -> str:
        """Return the reason, and when the next attempt is; empty: none is known. (A cold start of the version is one, too.)"""
        words, again_s = self._of.get(program, ("", 0.0))
        return f"{words}; it is tried again {in_words(again_s - self._clock())}" if again_s else words


def in_words(seconds: float) -> str:
    """Say when a version's next attempt is: after so long, or its next cold start."""
    wait = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f"in {wait} or after its next cold start" if seconds >= 1 else "now"
