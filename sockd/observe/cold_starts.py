"""Why an invocation was cold, and what it imported itself: both from what is remembered anyhow, when somebody asks.

Pure. "Remembered" is the ring of traces, so "first" means the first of those.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from sockd.base.spelling import counted

MAX_IMPORTED = 12
"""Packages that are listed by name; the others are summed up."""


class Imported(msgspec.Struct, frozen=True):
    """What a function imported of one package after the fork."""

    package: str
    """Its key, name-version-digest; of those that are summed up, how many they are, in words."""
    modules: int
    ns: int


class Past(Protocol):
    """A trace, as far as the reason needs it."""

    function: str
    deploy: int
    arrived_ns: int
    started_ns: int
    answered_ns: int
    error_type: str
    why: str


def imported_packages(imports: Iterable[tuple[str, str, float]]) -> tuple[Imported, ...]:
    """The packages of the modules that a function says to have imported, slowest first.

    Args: imports: (package directory, module, own seconds)."""
    sums: dict[str, tuple[int, float]] = {}
    for key, _, seconds in imports:
        count, spent = sums.get(key, (0, 0.0))
        sums[key] = (count + 1, spent + seconds)
    slowest = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))
    rest = slowest[MAX_IMPORTED:]
    shown = [Imported(key, count, int(spent * 1e9)) for key, (count, spent) in slowest[:MAX_IMPORTED]]
    if rest:
        modules, spent = sum(count for _, (count, _) in rest), sum(spent for _, (_, spent) in rest)
        shown.append(Imported(f"{len(rest)} more packages", modules, int(spent * 1e9)))
    return tuple(shown)


def why_cold(trace: Past, remembered: Sequence[Past]) -> str:
    """Why there was no idle sandbox when this one was asked for, as a sentence.

    Args: remembered: traces of all functions, oldest first; those that came later do not matter."""
    if trace.why:
        return f"A new sandbox was {trace.why}."
    earlier = [each for each in remembered if each.function == trace.function and each.arrived_ns < trace.arrived_ns]
    same = [each for each in earlier if each.deploy == trace.deploy]
    if not earlier:
        return "It is the first request of this function that is remembered."
    if not same:
        return f"It is the first request since deploy {trace.deploy}, which sandboxes of other deploys do not serve."
    busy = sum(each.answered_ns > trace.started_ns for each in same)
    if busy:
        return f"Every sandbox of this function was busy: {counted(busy, 'other request')} ran just then."
    last = max(same, key=lambda each: each.answered_ns)
    if last.error_type:
        return f"The request before it ended with {last.error_type}, so its sandbox may be gone."
    return "Its idle sandboxes were gone: evicted for others, or ended."
