"""Aliases: names that lead to a published version of a function, or to two of which one gets a share of the requests."""

from __future__ import annotations

import re
from dataclasses import dataclass

LATEST = "$LATEST"
"""The qualifier of what was deployed last, published or not (AWS's word)."""
NAME = re.compile(r"(?!\d+$)[A-Za-z0-9_-]{1,128}", re.ASCII)
"""Of an alias: a number would be a version."""


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
