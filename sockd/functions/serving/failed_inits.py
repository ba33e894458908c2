"""Failures of provisioned sandboxes before any request. They go to the function's log, because no answer reports them.

Owns nothing: the log store is among the listeners.
"""

from __future__ import annotations

from collections.abc import Callable

from sockd.functions.serving.version import Version
from sockd.isolation.sandbox.exchange import Reply

Note = Callable[[Version, Reply], None]
"""Takes the version that failed, what its sandbox printed and the error."""


class FailedInits:
    """Tells its listeners of the failures of all functions."""

    __slots__ = ("listeners",)

    def __init__(self) -> None:
        self.listeners: list[Note] = []

    def note(self, version: Version, reply: Reply) -> None:
        for listener in self.listeners:
            listener(version, reply)
