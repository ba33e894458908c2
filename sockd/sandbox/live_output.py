"""Which functions' output somebody follows while requests run.

Owns the table. A read of a sandbox's output looks whether the table is empty, and does no more where nobody follows.
"""

from __future__ import annotations

from collections.abc import Callable

Show = Callable[[bytes, bytearray], None]
"""Takes a request's id and all that is kept of its output so far, which changes after the call."""


class LiveOutput:
    """`shows` has one entry for each followed function, by its name."""

    __slots__ = ("shows",)

    def __init__(self) -> None:
        self.shows: dict[str, Show] = {}
