"""Failures of provisioned sandboxes before any request. They go to the function's log, because no answer reports them.

Owns nothing: the log store sets `note`.
"""

from __future__ import annotations

from collections.abc import Callable

from sockd.functions.version import Version
from sockd.sandbox.exchange import Reply

Note = Callable[[Version, Reply], None]
"""Takes the version that failed, what its sandbox printed and the error."""


def nowhere(version: Version, reply: Reply) -> None:
    """Where nobody keeps logs."""


class FailedInits:
    """The failed inits of all functions."""

    __slots__ = ("note",)

    def __init__(self) -> None:
        self.note: Note = nowhere
