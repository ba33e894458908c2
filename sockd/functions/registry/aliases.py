"""Aliases: names that lead to a published version of a function, or to two of which one gets a share of the requests."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

LATEST = "$LATEST"
"""The qualifier of what was deployed last, published or not (AWS's word)."""
NAME = re.compile(r"(?!\d+$)[A-Za-z0-9_-]{1,128}", re.ASCII)
"""The name of an alias: a number would be a version."""


@dataclass(frozen=True, slots=True)
class Guard:
    """When the second version of an alias is withdrawn, and when it replaces the first."""

    most_errors: float
    """The share of its requests that may fail, in [0, 1)."""
    least_requests: int
    """By fewer of its requests it does not replace the first version."""
    hold_s: float
    """For so many seconds it has its share at least, before it replaces the first version."""
    since_s: float
    """Unix time when it was given its share."""

    def verdict(self, requests: int, failed: int, now_s: float) -> bool | None:
        """POLICY: what becomes of the version by its requests so far: True: it replaces the first one, False: it is withdrawn,
        None: neither yet.

        It is withdrawn as soon as even `least_requests` of them would have too many errors, however well the rest go."""
        if failed > self.most_errors * max(requests, self.least_requests):
            return False
        if requests >= self.least_requests and now_s - self.since_s >= self.hold_s:
            return True
        return None


@dataclass(frozen=True, slots=True)
class Alias:
    """One alias."""

    name: str
    """The function."""
    alias: str
    version: str
    """A published number, or $LATEST."""
    other: str = ""
    """A published number that gets a share of the requests; empty: none does."""
    weight: float = 0.0
    """The share, in [0, 1)."""
    description: str = ""
    revision: str = ""
    """Another one for each change."""
    guard: Guard | None = None
    """Decides what becomes of `other`; None: nothing does by itself."""
    outcome: str = ""
    """What became of the last guarded version, in words."""

    def decided(self, *, promotes: bool, outcome: str) -> Alias:
        """Return the alias without its second version, which has replaced the first or was withdrawn."""
        version = self.other if promotes else self.version
        return replace(self, version=version, other="", weight=0.0, guard=None, outcome=outcome)

    def pick(self, draw: float) -> str:
        """POLICY: the version that serves a request. Args: draw: in [0, 1), evenly distributed over requests."""
        return self.other if draw < self.weight else self.version

    def shares(self, count: int) -> dict[str, int]:
        """POLICY: how so many sandboxes are divided among its versions: as its requests are, none left without."""
        if not self.other or not self.weight:
            return {self.version: count}
        others = min(max(round(count * self.weight), 1), count - 1)
        return {version: share for version, share in ((self.version, count - others), (self.other, others)) if share}


def number_of(qualifier: str) -> int | None:
    """The published number that a qualifier is; None: it is another word."""
    is_number = qualifier.isascii() and qualifier.isdigit() and len(qualifier) <= 18  # 63 bits
    return int(qualifier) if is_number else None
