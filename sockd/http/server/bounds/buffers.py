"""The memory budget of the HTTP server, shared fairly by source (`sockd.http.server.bounds.sources`).

Counted are bodies that need more than one read, until their requests have ended; answers that a client does not take; and long
pipelines. A connection may hold `PLACE_BYTES` more, uncounted.

    POLICY: one source may use the whole budget while no other wants it. When the budget is full, a source that holds less
    takes room from the source that holds most, whose longest idle buffer is dropped with a 503; a source that holds most
    itself waits, unread and in order of arrival. A body is counted whole before more than a read of it is taken, so bodies
    never wait for each other.

Owns numbers, no bytes. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from itertools import islice

from sockd.base.config import MB, HttpConfig
from sockd.base.errors import BadConfig
from sockd.linux.cgroups.own_memory import memory_bytes

PLACE_BYTES = 64 * 1024
"""Uncounted, of each connection: one read of its socket, and as much that waits to be sent."""
COPIES = 2
"""Copies in memory of each byte of a body: its pieces and the whole, then the whole and the frame for the sandbox."""
LEAST_BYTES = 64 * MB
"""However small the memory, if the configuration says nothing."""
LOOKED_AT = 64
"""Buffers of a source, the longest idle first, among which one that can be dropped is looked for."""


def buffer_bytes(config: HttpConfig) -> int:
    """The budget that a configuration asks for. Raises: BadConfig, if no body of the greatest size would fit."""
    least = COPIES * config.max_payload_bytes
    if config.buffer_mb is None:
        return max(memory_bytes() // 10, LEAST_BYTES, least)
    if config.buffer_mb * MB < least:
        raise BadConfig(
            f"http.buffer_mb must be {-(-least // MB)} at least, which is {COPIES} times http.max_payload_bytes"
        )
    return config.buffer_mb * MB


class Share:
    """What one source holds."""

    __slots__ = ("buffers", "size")

    def __init__(self) -> None:
        self.size = 0
        self.buffers: OrderedDict[Buffer, None] = OrderedDict()
        """The one without progress for the longest time first."""


class Buffer:
    """One counted buffer. `close` gives it back; safe to call twice."""

    __slots__ = ("_budget", "give_way", "room_came", "size", "source")

    def __init__(
        self,
        budget: BufferBudget,
        source: str,
        give_way: Callable[[], bool],
        room_came: Callable[[], None],
    ) -> None:
        self._budget = budget
        self.source = source
        self.size = 0
        self.give_way = give_way
        self.room_came = room_came

    def grow(self, more: int) -> bool:
        """Count more, for which another source may lose something. False: there is no room, and nothing was counted."""
        return self._budget._grow(self, more)

    def wait(self, more: int) -> None:
        """After `grow` has failed: count it when there is room, and call `room_came`."""
        self._budget._wait(self, more)

    def touch(self) -> None:
        """Its client has just done something."""
        self._budget._count(self, 0)

    def set(self, size: int) -> None:
        """Count what is there already, whether there is room or not; if not, others may have to give way."""
        self._budget._set(self, size)

    def close(self) -> None:
        self._budget._close(self)


class BufferBudget:
    """For one event loop."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self.dropped = 0
        """Buffers that were given up for want of room."""
        self._shares: dict[str, Share] = {}
        self._waiting: OrderedDict[Buffer, int] = OrderedDict()
        """How much each wants, the longest waiting first."""
        self._waiting_of: Counter[str] = Counter()
        """How many of each source."""
        self._is_waking = False

    def open(
        self,
        source: str,
        give_way: Callable[[], bool],
        room_came: Callable[[], None] = lambda: None,
    ) -> Buffer:
        """An empty buffer.

        Args:
            give_way: asked to close it, at once; False: that cannot be, now.
            room_came: as `Buffer.wait` says, in a step of the loop of its own."""
        return Buffer(self, source, give_way, room_came)

    @property
    def waiting(self) -> int:
        """Buffers that wait for room."""
        return len(self._waiting)

    def held_by(self, source: str) -> int:
        """Bytes of one source."""
        share = self._shares.get(source)
        return share.size if share is not None else 0

    def is_crowded_by(self, source: str) -> bool:
        """More is held than the budget has, and no source holds more of it than this one."""
        return self.used > self.total and self.held_by(source) >= max(share.size for share in self._shares.values())

    def _grow(self, buffer: Buffer, more: int) -> bool:
        if self._waiting_of.get(buffer.source):
            return False
        if self.used + more > self.total and not self._make_room(more, self.held_by(buffer.source) + more):
            return False
        self._count(buffer, more)
        return True

    def _wait(self, buffer: Buffer, more: int) -> None:
        self._waiting[buffer] = more
        self._waiting_of[buffer.source] += 1

    def _wait_no_more(self, buffer: Buffer) -> None:
        if self._waiting.pop(buffer, None) is not None:
            self._waiting_of[buffer.source] -= 1
            if not self._waiting_of[buffer.source]:
                del self._waiting_of[buffer.source]

    def _set(self, buffer: Buffer, size: int) -> None:
        self._count(buffer, size - buffer.size)
        if self.used > self.total:
            self._make_room(0, 0)

    def _count(self, buffer: Buffer, more: int) -> None:
        share = self._shares.get(buffer.source)
        if share is None:
            share = self._shares[buffer.source] = Share()
        share.buffers[buffer] = None
        share.buffers.move_to_end(buffer)
        share.size += more
        buffer.size += more
        self.used += more

    def _make_room(self, more: int, least: int) -> bool:
        """Drop buffers of sources that hold more than `least`, of the one with most first."""
        while self.used + more > self.total:
            before = self.used
            shares = sorted(self._shares.values(), key=lambda share: share.size, reverse=True)
            if not any(self._drop_one(share) for share in shares if share.size > least) or self.used >= before:
                return False
        return True

    def _drop_one(self, share: Share) -> bool:
        dropped = any(buffer.give_way() for buffer in list(islice(share.buffers, LOOKED_AT)))
        self.dropped += dropped
        return dropped

    def _close(self, buffer: Buffer) -> None:
        self._wait_no_more(buffer)
        share = self._shares.get(buffer.source)
        if share is not None and buffer in share.buffers:
            del share.buffers[buffer]
            share.size -= buffer.size
            self.used -= buffer.size
            buffer.size = 0
            if not share.buffers:
                del self._shares[buffer.source]
        if self._waiting and not self._is_waking:
            # Later: the buffer that makes room right now takes it first.
            self._is_waking = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        """Serve those who wait, each source in order, as far as there is room."""
        self._is_waking = False
        blocked: set[str] = set()
        for buffer, more in list(self._waiting.items()):
            if buffer.source in blocked or buffer not in self._waiting:
                continue
            if self.used + more > self.total:
                blocked.add(buffer.source)
                continue
            self._wait_no_more(buffer)
            self._count(buffer, more)
            buffer.room_came()
