"""The guard of the tests' event loops: to close a descriptor that a loop watches fails at once, with both stacks.

libuv aborts the process for such a descriptor only if it meets it before the number is used again, and after that it silently
watches the wrong one (`sockd/linux/readiness.py`). `install` replaces the methods of uvloop's and asyncio's loops that
watch descriptors, and the ways to close one. Daemons that tests start get it through `tests/support/site`; engines do not, as
their environment and their root are the product's.

Owns the table of what is watched. A descriptor that is closed in a way that is not replaced here (an epoll, a file object)
is found when its watch ends or is made anew: the number is another file by then, or none.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop

STATUS = 86
"""What a process ends with that has no test to fail."""
SITE = Path(__file__).parent / "site"
"""First in PYTHONPATH, it guards each process that has loops."""
_DEPTH = 8

Where = list[str]


class WatchedDescriptorClosed(AssertionError):
    """A descriptor was closed while an event loop watched it."""


class Guard:
    """What is watched, by descriptor; and what was done wrong."""

    def __init__(self, *, is_fatal: bool) -> None:
        """Args: is_fatal: end the process; otherwise raise, and keep the words for the test's end."""
        self._is_fatal = is_fatal
        self._watches: dict[int, dict[tuple[int, str], tuple[Any, Any, Where]]] = {}
        """By descriptor, then by loop and direction: the loop, which file it was, and where that was asked for."""
        self._violations: list[str] = []

    def take_violations(self) -> list[str]:
        """What was done since the last call."""
        found, self._violations = self._violations, []
        return found

    def watch(self, loop: Any, direction: str, fd: int) -> None:
        self._check_is_same(fd)
        self._watches.setdefault(fd, {})[id(loop), direction] = (loop, _identity(fd), _stack())

    def unwatch(self, loop: Any, direction: str, fd: int) -> None:
        if (id(loop), direction) in self._watches.get(fd, {}):
            self._check_is_same(fd)
            del self._watches[fd][id(loop), direction]
            if not self._watches[fd]:
                del self._watches[fd]

    def forget(self, loop: Any) -> None:
        """The loop is closed."""
        for fd, watches in list(self._watches.items()):
            for key in [key for key in watches if key[0] == id(loop)]:
                del watches[key]
            if not watches:
                del self._watches[fd]

    def forget_all(self) -> None:
        """This is a forked child: its loops are its parent's."""
        self._watches.clear()

    def closing(self, fd: int) -> None:
        """Check a descriptor that is about to be closed."""
        if fd in self._watches:
            self._fail(fd, "is closed")

    def _check_is_same(self, fd: int) -> None:
        for _, before, _ in self._watches.get(fd, {}).values():
            if before != _identity(fd):
                self._fail(fd, "was closed before this")

    def _fail(self, fd: int, did: str) -> None:
        watches = self._watches.pop(fd)
        words = [f"descriptor {fd} {did} while an event loop watches it\n", *_stack(_DEPTH * 2)]
        for (_, direction), (_, _, where) in watches.items():
            words += [f"watched with {direction} from:\n", *where]
        text = "".join(words)
        self._violations.append(text)
        if self._is_fatal:
            os.write(2, f"WatchedDescriptorClosed: {text}".encode())
            os._exit(STATUS)
        raise WatchedDescriptorClosed(text)


def install(*, is_fatal: bool) -> Guard:
    """Guard every loop of this process from now on."""
    guard = Guard(is_fatal=is_fatal)
    for loop in (uvloop.Loop, asyncio.SelectorEventLoop):
        for kind in ("reader", "writer"):
            _guard_loop(loop, guard, kind)
        _around(loop, "close", lambda self: None, after=guard.forget)
    for name in ("close", "dup2"):
        _guard_close(name, guard)
    _around(socket.socket, "_real_close", lambda self, *_: guard.closing(self.fileno()))
    os.register_at_fork(after_in_child=guard.forget_all)
    return guard


def _guard_loop(loop: type, guard: Guard, kind: str) -> None:
    add, remove = getattr(loop, f"add_{kind}"), getattr(loop, f"remove_{kind}")

    def adds(self: Any, fd: Any, callback: Callable[..., object], *args: Any) -> None:
        if not _keeps_itself_open(self, fd):
            guard.watch(self, f"add_{kind}", _number(fd))
        add(self, fd, callback, *args)

    def removes(self: Any, fd: Any) -> Any:
        guard.unwatch(self, f"add_{kind}", _number(fd))
        return remove(self, fd)

    setattr(loop, f"add_{kind}", adds)
    setattr(loop, f"remove_{kind}", removes)


def _guard_close(name: str, guard: Guard) -> None:
    original = getattr(os, name)

    def closes(*args: Any, **kwargs: Any) -> Any:
        guard.closing(args[-1] if name == "close" else args[1])
        return original(*args, **kwargs)

    setattr(os, name, closes)


def _around(owner: type, name: str, before: Callable[..., None], after: Callable[..., None] | None = None) -> None:
    original = getattr(owner, name)

    def method(self: Any, *args: Any) -> Any:
        before(self, *args)
        result = original(self, *args)
        if after is not None:
            after(self)
        return result

    setattr(owner, name, method)


def _keeps_itself_open(loop: Any, fd: Any) -> bool:
    """uvloop closes a socket object that it watches itself, when it watches it no more."""
    return isinstance(fd, socket.socket) and isinstance(loop, uvloop.Loop)


def _number(fd: Any) -> int:
    return fd if isinstance(fd, int) else int(fd.fileno())


def _identity(fd: int) -> tuple[int, int] | None:
    """Return which file a descriptor is; anonymous inodes share one, so an epoll that took the number of another is not
    noticed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _stack(depth: int = _DEPTH) -> Where:
    """The innermost frames outside of this file, without source lines: cheap, as it is made for every watch."""
    frame: FrameType | None = sys._getframe(1)
    frames: list[tuple[str, int, str]] = []
    while frame is not None and len(frames) < depth:
        if frame.f_code.co_filename != __file__:
            frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return [f'  File "{file}", line {line}, in {name}\n' for file, line, name in reversed(frames)]
