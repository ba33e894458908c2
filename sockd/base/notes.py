"""Progress of work for a person, and the lines of it that stay when the work has ended. Pure."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]
"""Takes one line of progress, for a person; never waits."""


class Note(str):
    """What somebody is to know of a finished work, such as an ignored file; other lines of progress say only what is done now."""

    __slots__ = ()
