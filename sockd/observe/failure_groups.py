"""Failures by what they have in common: one group for each function, type of error and line of code, with a count.

Owns the groups. Counts are since the worker started, whatever became of the single traces. Bounded: a function that raises errors
of ever new types pushes out its own groups, not those of others.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

MOST = 1000
MOST_EACH = 50
"""Groups of one function."""
TYPE_CHARS = 120
MESSAGE_CHARS = 300
CODE = "/var/task/"
PACKAGES = "/site-packages/"
_FRAME = re.compile(r'^\s*File "([^"\n]{1,300})", line (\d{1,9})', re.MULTILINE)


class FailureKey(NamedTuple):
    """What the failures of a group have in common."""

    function: str
    error_type: str
    line: str
    """The innermost line of the function's own code, as `file.py:12`; empty: the error has no Python traceback."""


class FailureGroup(msgspec.Struct):
    """The failures of one key; moments are of CLOCK_MONOTONIC, in ns."""

    key: FailureKey
    count: int
    first_ns: int
    last_ns: int
    request_id: bytes
    """The request id of the last failure, as `message`."""
    message: str


class FailureGroups:
    """All groups of a worker."""

    def __init__(self, most: int = MOST, most_each: int = MOST_EACH) -> None:
        """Args: most: groups of all functions; most_each: of one."""
        self._most = most
        self._most_each = most_each
        self._of: dict[str, OrderedDict[FailureKey, FailureGroup]] = {}
        """The groups of each function, the one that failed last at the end."""
        self._size = 0

    def add(self, key: FailureKey, at_ns: int, request_id: bytes, message: str) -> None:
        """Count a failure."""
        groups = self._of.setdefault(key.function, OrderedDict())
        group = groups.get(key)
        if group is None:
            group = groups[key] = FailureGroup(key, 0, at_ns, at_ns, request_id, "")
            self._size += 1
        groups.move_to_end(key)
        group.count += 1
        group.last_ns, group.request_id, group.message = at_ns, request_id, message[:MESSAGE_CHARS]
        if len(groups) > self._most_each:
            self._drop(key.function)
        elif self._size > self._most:
            self._drop(max(self._of, key=lambda name: len(self._of[name])))

    def last(self, limit: int, function: str | None = None) -> list[FailureGroup]:
        """Return the groups that failed last, newest first. Args: function: only those of this one."""
        names = [function] if function in self._of else [] if function is not None else [*self._of]
        groups = [group for name in names for group in self._of[name].values()]
        return sorted(groups, key=lambda group: group.last_ns, reverse=True)[:limit]

    def forget(self, name: str) -> None:
        """Drop a removed function's groups."""
        self._size -= len(self._of.pop(name, ()))

    def _drop(self, function: str) -> None:
        """POLICY: of the function with most groups, the one goes that has not failed for the longest time."""
        groups = self._of[function]
        groups.popitem(last=False)
        self._size -= 1
        if not groups:
            del self._of[function]


def failure_key(function: str, error_type: str, stack: Sequence[str]) -> FailureKey:
    """The key of a failure. Args: stack: the frames of its error, the innermost last."""
    return FailureKey(function, error_type[:TYPE_CHARS], line_of(stack))


def line_of(stack: Sequence[str]) -> str:
    """The innermost line of the function's own code, else the innermost line; empty: there is none."""
    frames = [found for text in stack for found in _FRAME.findall(text)]
    own = [frame for frame in frames if frame[0].startswith(CODE) and PACKAGES not in frame[0]]
    if not frames:
        return ""
    path, line = (own or frames)[-1]
    return f"{path.removeprefix(CODE)}:{line}"
