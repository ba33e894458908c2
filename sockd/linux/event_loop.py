"""The event loop of our processes: uvloop's, which goes on watching a descriptor that has an error, and whose timers are
never early.

epoll(7) reports EPOLLERR with EPOLLIN for a socket that its peer has reset, or closed with unread data, until the error is
read. libuv takes EPOLLERR for the end of the descriptor and stops watching it (uv__poll_io); uvloop calls the reader and the
writer once more and closes its watch (UVPoll._fatal_error). A reader that takes 64 KB of what came before the reset is then never
called for the rest and for the end, and `add_reader` and `add_writer` raise RuntimeError until somebody removes the closed watch.
asyncio's own loop goes on. tests/linux/test_event_loop.py fails when uvloop does, too: then that half of this file
is to be deleted.

uvloop rounds a delay to milliseconds and calls at once what is to be called in less than half of one; libuv's clock drops what
is below a millisecond. A callback that compares a clock with the time that it was set for would find itself early and set the
timer again, for up to a millisecond: ten and more turns of the loop for each start of a sandbox.

Owns nothing that uvloop does not. A watch that uvloop has given up is recognized by its callback: uvloop had the only
reference to it.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any
from weakref import ref

import uvloop

READER, WRITER = "reader", "writer"
ROUNDING_S = 0.0015
"""By how much less than a timer's delay may have passed when uvloop calls: half a millisecond, and one of libuv's clock."""


class EventLoop(uvloop.Loop):
    """uvloop's, but `add_reader` and `add_writer` hold until `remove_reader` and `remove_writer`, and no timer is early."""

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

    def call_later(  # type: ignore[override]  # asyncio binds the callback's arguments to their types
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> TimerHandle:
        """Call it when that many seconds have passed, or at once if none have to."""
        return super().call_later(delay + ROUNDING_S if delay > 0 else delay, callback, *args, context=context)

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
        """uvloop has let go of a callback. Unless its owner removed it, the watch is closed; uvloop is in the middle of that."""
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
    """The callback that uvloop has, without keeping it alive; forgotten with its place in the table, whichever side releases
    it."""

    __slots__ = ("callback", "direction", "fd")
    fd: Any
    direction: str
    callback: tuple[Callable[..., object], tuple[Any, ...]]


def _number(fd: Any) -> int:
    return fd if isinstance(fd, int) else int(fd.fileno())
