"""The import cache's hits: the share of cold starts whose packages a Zygote had imported.

Owns the counters. A start counts by the packages that it imported itself.
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
        self.passed_over = 0
        """Partial hits and misses for which a Zygote with more of the packages existed, whose imports would have gone
        another way in the function's own start (`soundness`). SOCK's rule would have taken that Zygote."""

    def count(self, closure: frozenset[str], held: frozenset[str], imported: int, *, passed_over: bool = False) -> None:
        """One start.

        Args:
            closure: the function's packages; held: those of its Zygote.
            imported: modules of packages that it imported after the fork.
            passed_over: a Zygote with more of them was not allowed to serve it."""
        self.passed_over += bool(closure and imported and passed_over)
        if not closure:
            self.unneeded += 1
        elif not imported:
            self.full += 1
        elif held:
            self.partial += 1
        else:
            self.missed += 1
