"""Connections that the sandboxes of one function, and those of all functions, may have together: divided into grants.

    POLICY: a sandbox is granted the largest class that is at most half of what is left of its function's share and of the share
    of all. There is a smallest class, which none is refused. So the first sandboxes of a function have what the settings say,
    and a crowd of them has less each.

Pure: numbers. A grant is enforced by the rules of its class (`ruleset.classes`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_PART = 2
ENTRIES = 3
"""Entries in a table of tracked connections for each connection that a sandbox is granted, at most: one that is open, and two
that ended within the two minutes for which the host remembers them (`network.new_connections`)."""


class ConnectionShares:
    """`take` a grant for a sandbox; `give_back` when the sandbox has ended."""

    def __init__(self, classes: Sequence[int], most: int, of_function: int) -> None:
        """Args: classes: connections of a sandbox of each class, the largest first; most: of all sandboxes; of_function: of all
        sandboxes of one function."""
        self._classes = classes
        self._most = most
        self._of_function = of_function
        self._total = 0
        self._granted: Counter[str] = Counter()

    def take(self, function: str) -> int:
        """Return the class of one more sandbox of a function. Args: function: what distinguishes it from others."""
        left = min(self._of_function - self._granted[function], self._most - self._total)
        granted = next((each for each in self._classes if each * _PART <= left), self._classes[-1])
        self._granted[function] += granted
        self._total += granted
        return granted

    def give_back(self, function: str, granted: int) -> None:
        """Undo one `take`."""
        self._total -= granted
        self._granted[function] -= granted
        if not self._granted[function]:
            del self._granted[function]
