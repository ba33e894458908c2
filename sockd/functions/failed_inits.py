"""Failures of sandboxes that are initialized before any request: they belong into the function's log, as no answer tells of them.

Owns nothing: whoever keeps logs sets `note`.
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
    """Of all functions."""

    __slots__ = ("note",)

    def __init__(self) -> None:
        self.note: Note = nowhere
