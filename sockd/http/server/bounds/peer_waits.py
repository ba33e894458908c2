"""Connections that wait for their peers, which have sent a part of a body or taken a part of an answer; by source.

They are what a flood holds when it has asked for something. Whose they are the kernel is asked only when places are scarce,
for some of them at a time.

Owns nothing but the order: those whose peers have done nothing for the longest time first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Generic, Protocol, TypeVar

ASKED_AT_ONCE = 128
"""Connections whose source the kernel is asked for in one step of the loop: 3 ms."""


class Peer(Protocol):
    """A connection, as its source is asked for here."""

    @property
    def known_source(self) -> str | None:
        """Where it comes from, if the kernel was asked already."""

    @property
    def source(self) -> str:
        """Where it comes from."""


P = TypeVar("P", bound=Peer)


class PeerWaits(Generic[P]):
    """The connections of one server that wait for their peers."""

    def __init__(self) -> None:
        self._unknown: OrderedDict[P, None] = OrderedDict()
        self._by_source: dict[str, OrderedDict[P, None]] = {}

    @property
    def sources(self) -> int:
        """How many different ones, as far as they are known."""
        return len(self._by_source)

    def begin(self, connection: P) -> None:
        """Add a waiting connection, or move it to the end after its peer has done something."""
        self.end(connection)
        if connection.known_source is None:
            self._unknown[connection] = None
        else:
            self._by_source.setdefault(connection.known_source, OrderedDict())[connection] = None

    def end(self, connection: P) -> None:
        """Remove a connection that does not wait any more, or is gone."""
        if connection in self._unknown:
            del self._unknown[connection]
            return
        source = connection.known_source
        if source is not None and (theirs := self._by_source.get(source)) is not None:
            theirs.pop(connection, None)
            if not theirs:
                del self._by_source[source]

    def find_sources(self) -> None:
        """Ask for the source of some, those that have waited longest."""
        for connection in list(islice(self._unknown, ASKED_AT_ONCE)):
            del self._unknown[connection]
            self._by_source.setdefault(connection.source, OrderedDict())[connection] = None

    def largest(self) -> tuple[str, int]:
        """The source with the most, as far as sources are known, and how many these are; "" and 0 if there are none."""
        if not self._by_source:
            return "", 0
        source = max(self._by_source, key=lambda source: len(self._by_source[source]))
        return source, len(self._by_source[source])

    def count(self, source: str) -> int:
        return len(self._by_source.get(source, ()))

    def of(self, source: str) -> Iterator[P]:
        """Iterate over the waiting connections of one source, the longest idle first."""
        return iter(self._by_source.get(source, ()))
