"""The import cache's hits: how much of what cold starts needed had been imported ahead, by a Zygote.

Owns four counters. A start is judged by what it imported itself, not by what its function might have needed.
"""

from __future__ import annotations


class ImportHits:
    """Cold starts that were answered, since the worker started."""

    def __init__(self) -> None:
        self.full = 0
        """Everything from packages was there."""
        self.partial = 0
        """A Zygote had some of the packages; the function imported more."""
        self.missed = 0
        """The function has packages and was forked from the bare root."""
        self.unneeded = 0
        """The function has no packages."""

    def count(self, closure: frozenset[str], held: frozenset[str], imported: int) -> None:
        """One start.

        Args:
            closure: the function's packages; held: those of its Zygote.
            imported: modules of packages that it imported after the fork."""
        if not closure:
            self.unneeded += 1
        elif not imported:
            self.full += 1
        elif held:
            self.partial += 1
        else:
            self.missed += 1
