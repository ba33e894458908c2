"""Note: a line of progress that stays when the work has ended. Pure."""

from __future__ import annotations


class Note(str):
    """What somebody is to know of a finished work, such as an ignored file; other lines of progress say only what is done now."""

    __slots__ = ()
