"""Connections without a request: the daemon reads from each in its turn.

A burst of connections arrives here. An event loop reads all readable sockets in one iteration, even a thousand, while all others
wait: so these are not the loop's to look at but are in an epoll of their own, which the loop only sees as a
whole, and which gives out a few at a time. All of them have one place among the `turns`.

Owns the epoll, not the transports.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from typing import Protocol

from sockd.http.server.listening.turns import UNIT_BYTES, Turns

PLACE = 0
ASKED_FOR = 16
"""Transports that the epoll is asked for at once. They wait in order: those that it has named come last in its next answer."""


class Reader(Protocol):
    """What is read from: an accepted socket's transport."""

    @property
    def fd(self) -> int: ...

    def read(self) -> int:
        """Read once. Returns: how many bytes have come."""


class AcceptQueue:
    """`add` a transport that is to be read from when its turn comes; `remove` it before it is closed."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._standing: dict[int, Reader] = {}
        """By descriptor."""
        self._next: deque[int] = deque()
        """Descriptors of connections that became readable; a connection may have gone since."""
        self._waits = False
        self._loop.add_reader(self._epoll.fileno(), self._readable)

    def add(self, transport: Reader) -> None:
        """Read from it in its turn."""
        self._standing[transport.fd] = transport
        self._epoll.register(transport.fd, select.EPOLLIN)

    def remove(self, transport: Reader) -> None:
        """Read from it no more."""
        del self._standing[transport.fd]
        self._epoll.unregister(transport.fd)

    def close(self) -> None:
        """Look no more."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def place(self) -> int:
        """They share one."""
        return PLACE

    def go_on(self) -> int:
        """Read from the next one; returns how many units of a turn that was."""
        self._waits = False
        count = 0
        while self._next:
            transport = self._standing.get(self._next.popleft())
            if transport is not None:
                count = transport.read()
                break
        if self._next:
            self._readable()
        return 1 + count // UNIT_BYTES

    def _readable(self) -> None:
        if self._waits:
            return
        if not self._next:
            self._next.extend(fd for fd, _ in self._epoll.poll(0, ASKED_FOR))
        if self._next:
            self._waits = True
            self._turns.wait(self)
