"""What the runner raises on purpose, as one tree; each error says what to do, in `fix`, where there is something.

SebsError
 ├─ FetchFailed ── WrongHash      a package could not be installed into the cache
 ├─ SuiteMissing                  `sockd sebs fetch` was never run
 ├─ SuiteChanged                  a file of the suite is not what its wheel brought
 ├─ NoSuchBench
 ├─ NotPossible                   this bench cannot run here, or not so
 ├─ InvocationFailed              the worker or the function answered with an error
 └─ WrongAnswer                   the function answered, but not what it must
"""

from __future__ import annotations


class SebsError(Exception):
    """The root of the tree."""

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class FetchFailed(SebsError):
    """A package could not be installed into the cache; the message has the installer's words."""


class WrongHash(FetchFailed):
    """What the package index served is not the file that is pinned here."""


class SuiteMissing(SebsError):
    """The suite is not in the cache."""


class SuiteChanged(SebsError):
    """A file of the suite in the cache is not the one that its wheel brought."""


class NoSuchBench(SebsError):
    """No bench has this name."""


class NotPossible(SebsError):
    """What was asked for cannot be done here; the message says what is missing."""


class InvocationFailed(SebsError):
    """The worker or the function answered with an error."""


class WrongAnswer(SebsError):
    """A function answered, but not what it must."""
