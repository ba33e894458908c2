"""Warnings that a function could have the worker write without end: one line at once, then a count for each interval.

Owns the counts and a timer.
"""

from __future__ import annotations

import logging

from sockd.events.clock import Clock, LoopClock, Timer

INTERVAL_S = 60.0
MOST = 256
"""Subjects that are counted separately in one interval; those beyond are counted together."""
OTHERS = "others"


class RepeatedWarnings:
    """`warn`; `close` tells what has been counted until then."""

    def __init__(self, log: logging.Logger, clock: Clock | None = None) -> None:
        self._log = log
        self._clock = clock or LoopClock()
        self._counts: dict[str, tuple[int, str]] = {}
        """By subject: how many were not written in this interval, and the last of them."""
        self._timer: Timer | None = None

    def warn(self, subject: str, text: str) -> None:
        """Write a line, or count it if there has been one on the subject in this interval."""
        if self._timer is None:
            self._timer = self._clock.call_later(INTERVAL_S, self._over)
        if subject not in self._counts and len(self._counts) >= MOST:
            subject = OTHERS
        if subject in self._counts:
            self._counts[subject] = self._counts[subject][0] + 1, text
        else:
            self._counts[subject] = 0, ""
            self._log.warning("%s", text)

    def close(self) -> None:
        """Safe to call twice."""
        self._tell()
        self._counts = {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        """An interval has passed. A subject that was warned of in it is counted in the next one from the start."""
        self._tell()
        self._counts = {subject: (0, "") for subject, (count, _) in self._counts.items() if count}
        self._timer = self._clock.call_later(INTERVAL_S, self._over) if self._counts else None

    def _tell(self) -> None:
        for subject, (count, last) in self._counts.items():
            if count:
                self._log.warning("%s: %d more within %.0f s, the last: %s", subject, count, INTERVAL_S, last)
