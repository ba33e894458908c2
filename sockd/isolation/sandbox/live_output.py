"""Subscriptions to functions' output while requests run.

Owns the table, and the list of open outputs. Reading a sandbox's output checks whether the table is empty, and does nothing more
if it is.
"""

from __future__ import annotations

from collections.abc import Callable

Show = Callable[[bytes, bytearray], None]
"""Takes a request's id and all that is kept of its output so far, which changes after the call."""


class LiveOutput:
    """`shows` has one entry for each followed function; `outputs`, for each sandbox, a call that shows what it keeps."""

    __slots__ = ("outputs", "shows")

    def __init__(self) -> None:
        self.shows: dict[str, Show] = {}
        self.outputs: set[Callable[[], None]] = set()

    def follow(self, name: str, show: Show) -> None:
        """Show what requests of a function print from now on, and at once what those that run have printed."""
        self.shows[name] = show
        for show_kept in self.outputs:
            show_kept()
