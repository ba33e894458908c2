"""The event loop of our processes: uvloop's, which goes on watching a descriptor that has an error.

epoll(7) reports EPOLLERR beside EPOLLIN for a socket that its peer has reset, or closed with unread data, until the error is
read. libuv takes EPOLLERR for the end of the descriptor and stops watching it (uv__poll_io); uvloop calls the reader and the
writer once more and closes its watch (UVPoll._fatal_error). A reader that takes 64 KB of what came before the reset is then never
called for the rest and for the end, and `add_reader` and `add_writer` raise RuntimeError until somebody removes the closed watch.
asyncio's own loop goes on. tests/kernel/test_event_loop.py fails when uvloop does, too: then this file is to be deleted.

Owns nothing that uvloop does not. A watch that uvloop has given up is recognized by its callback: uvloop had the only
reference to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

import uvloop

READER, WRITER = "reader", "writer"


class EventLoop(uvloop.Loop):
    """uvloop's, but `add_reader` and `add_writer` hold until `remove_reader` and `remove_writer`."""

    def __init__(self) -> None:
        super().__init__()
        self._watches: dict[tuple[int, str], _Watch] = {}
        """By descriptor and direction: those that are to be."""
        self._given_up: set[int] = set()
        """Descriptors whose watch uvloop has closed and may still know."""

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]  # uvloop and asyncio differ
        """Call it whenever the descriptor is readable or has an error."""
        self._watch(fd, READER, partial(callback, *args))

    def add_writer(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]  # uvloop and asyncio differ
        """Call it whenever the descriptor is writable or has an error."""
        self._watch(fd, WRITER, partial(callback, *args))

    def remove_reader(self, fd: Any) -> None:  # type: ignore[override]  # uvloop and asyncio differ
        """Call it no more."""
        self._watches.pop((_number(fd), READER), None)
        super().remove_reader(fd)

    def remove_writer(self, fd: Any) -> None:  # type: ignore[override]  # uvloop and asyncio differ
        """Call it no more."""
        self._watches.pop((_number(fd), WRITER), None)
        super().remove_writer(fd)

    def close(self) -> None:
        """Watch nothing any more."""
        self._watches.clear()
        super().close()

    def _watch(self, fd: Any, direction: str, callback: partial[object]) -> None:
        number = _number(fd)
        if number in self._given_up:
            self._renew(number)
        watch = self._watches[number, direction] = _Watch(callback, self._on_given_up)
        watch.fd, watch.direction, watch.callback = fd, direction, (callback.func, callback.args)
        try:
            (super().add_reader if direction == READER else super().add_writer)(fd, callback)
        except BaseException:
            del self._watches[number, direction]
            raise

    def _on_given_up(self, watch: _Watch) -> None:
        """uvloop has let go of a callback. If nobody removed it, the watch is closed; uvloop is in the middle of that."""
        number = _number(watch.fd)
        if self._watches.get((number, watch.direction)) is watch and not self.is_closed():
            self._given_up.add(number)
            self.call_soon(self._renew, number)

    def _renew(self, number: int) -> None:
        """Have uvloop forget a watch that it has closed, and begin it anew for each direction that is to be watched."""
        if number not in self._given_up:
            return
        self._given_up.discard(number)
        wanted = [
            (watch.fd, direction, watch.callback)
            for direction in (READER, WRITER)
            if (watch := self._watches.pop((number, direction), None)) is not None
        ]
        super().remove_reader(number)
        super().remove_writer(number)
        for fd, direction, (callback, args) in wanted:
            self._watch(fd, direction, partial(callback, *args))


class _Watch(ref["partial[object]"]):
    """The callback that uvloop has, without keeping it alive; forgotten with its place in the table, whoever lets it go."""

    __slots__ = ("callback", "direction", "fd")
    fd: Any
    direction: str
    callback: tuple[Callable[..., object], tuple[Any, ...]]


def _number(fd: Any) -> int:
    return fd if isinstance(fd, int) else int(fd.fileno())
