"""One request sent twice, over two connections: the first reply that begins is the reply.

Owns which of both has begun. A sink gets the body of that one alone.
"""

from __future__ import annotations

from sockd_initscripts.rpc.base import ReplyBuffer, reset
from sockd_initscripts.rpc.http1.http_head import Head
from sockd_initscripts.rpc.http1.http_reply import Sink


class Race:
    """A sink for whichever of several exchanges is first."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._first: _Lane | None = None

    def lane(self) -> Sink:
        """The sink of one exchange."""
        return _Lane(self)

    def enter(self, lane: _Lane) -> Sink:
        """Let the first lane have the sink. Raises: RpcFailed, for all others."""
        if self._first is None:
            self._first = lane
        if self._first is not lane:
            raise reset("another connection was faster")
        return self._sink


class _Lane:
    def __init__(self, race: Race) -> None:
        self._race = race

    def place(self, head: Head, length: int) -> memoryview:
        return self._race.enter(self).place(head, length)

    def collect(self, head: Head) -> ReplyBuffer:
        return self._race.enter(self).collect(head)
