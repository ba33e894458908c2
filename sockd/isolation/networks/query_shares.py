"""QueryShares: how many queries each source has under way, and whether it may have one more.

Pure.
"""

from __future__ import annotations

MOST_QUERIES = 512
"""The most queries of all sources. getaddrinfo(3) sends two, which wait for one query to a nameserver."""
MOST_OF_ONE_SOURCE = 64
_PART = 8
"""A source gets at most this part of the free places."""


class QueryShares:
    """`take`, and `release` once for each that was taken."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self._total = 0

    def take(self, source: str) -> bool:
        """Whether the source may have one more, which counts from now on."""
        count = self._of.get(source, 0)
        if count >= share(MOST_QUERIES - self._total):
            return False
        self._of[source] = count + 1
        self._total += 1
        return True

    def release(self, source: str) -> None:
        """One has ended."""
        self._total -= 1
        self._of[source] -= 1
        if self._of[source] == 0:
            del self._of[source]


def share(free: int) -> int:
    """POLICY: how many queries may one source have, if so many places are free?

    The more queries are under way, the fewer a source may have, so that places stay free for a source that has none. In balance
    n greedy sources hold n/(n + 8) of all places; 35 that begin one after the other leave each further one a single place."""
    return max(min(MOST_OF_ONE_SOURCE, free // _PART), min(1, free))
