"""What sockd does in one way on newer kernels and in another on older ones: one table, and what was found on this kernel.

Each way is tried, best first; no version of a kernel is read for it. A worker that is told to be as on an older kernel
(`sandbox.kernel`) takes the way that it would take there, so that every way runs on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from sockd.kernel import pidfds

Release = tuple[int, int]
"""(6, 18) for Linux 6.18."""
PIDFD, PARENT = "pidfd", "parent"


class Way(NamedTuple):
    """One way to have a feature."""

    name: str
    since: Release
    """The first kernel that has it."""
    words: str
    """How it is had, for people."""
    cost: str
    """What it costs against the best way; empty for that."""
    why_not: Callable[[], str]
    """Try it: the kernel's words if it cannot be had, or nothing."""


def _always() -> str:
    return ""


def _no_status() -> str:
    return "" if pidfds.tells_exit_status() else "no exit status by PIDFD_GET_INFO"


FIRST: Release = (5, 14)
"""The oldest kernel that sockd runs on."""
TABLE: dict[str, tuple[Way, ...]] = {
    "exits": (
        Way(PIDFD, (6, 15), "exit statuses by pidfds", "", _no_status),
        Way(PARENT, FIRST, "exit statuses from the parent process", "0.1 ms at the end of a sandbox", _always),
    ),
}
"""Features and their ways, best first; the last of each is had everywhere."""


@dataclass(frozen=True, slots=True)
class Found:
    """The way in which a feature is had."""

    way: Way
    reason: str
    """Why it is not the best one; empty if it is."""

    @property
    def name(self) -> str:
        """The way's name."""
        return self.way.name


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways of one worker."""

    exits: Found

    @classmethod
    def find(cls, kernel: Release | None = None) -> Ways:
        """Try each way. Args: kernel: take none that is newer than this one; None: any."""
        return cls(**{feature: _best(ways, kernel) for feature, ways in TABLE.items()})


def _best(ways: tuple[Way, ...], kernel: Release | None) -> Found:
    reason = ""
    for way in ways:
        if kernel is not None and way.since > kernel:
            why = "sandbox.kernel"
        elif not (why := way.why_not()):
            return Found(way, reason)
        reason = reason or why
    raise AssertionError("the last way is had everywhere")
