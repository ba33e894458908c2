"""What the loop listens to on behalf of other threads: an epoll(7) of our own inside of the loop's.

A guest's thread adds the descriptors of its run with one system call, and the loop sleeps on until one of them has
something to say: to be woken when a run begins, it would take a processor and the interpreter from that very guest.
Owns the epoll instance; the descriptors are their owners'.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

_EVENTS_A_TURN = 64


class Watched:
    """Made and closed on the loop; `add` and `remove` are for any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._functions: dict[int, Callable[[], None]] = {}
        loop.add_reader(self._epoll.fileno(), self._look)

    def add(self, fd: int, function: Callable[[], None]) -> None:
        """Have the loop call this whenever `fd` can be read, or has ended. It may be called when there is nothing after all."""
        self._functions[fd] = function
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Before it is closed. Again is nothing."""
        if self._functions.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def close(self) -> None:
        """Listen no longer."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _look(self) -> None:
        for fd, _ in self._epoll.poll(0, _EVENTS_A_TURN):
            if (function := self._functions.get(fd)) is not None:
                function()
