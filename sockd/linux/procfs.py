"""The procfs of another pid namespace, made from outside of it, as a detached mount.

Since Linux 6.18 procfs takes the namespace as an option. Before, a child of the daemon that is born there opens it, and a thread
waits for the child (native/procfs.c): 0.1 to 0.2 ms, in which the daemon goes on. Owns that thread.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import Protocol

from sockd.linux import _procfs, mounts, syscalls
from sockd.linux.processes import pidfds
from sockd.linux.syscalls import MountAttr

ATTRIBUTES = MountAttr.NOSUID | MountAttr.NODEV | MountAttr.NOEXEC
ONLY_OWN = {"hidepid": "invisible"}
"""Each process sees only those that it may trace (proc(5))."""


class Procfs(Protocol):
    """One way to make it."""

    async def new(self, pidfd: int, *, only_own: bool = False) -> int:
        """A procfs of the namespace that a process is in, a detached mount; its fd, close-on-exec.

        Args: only_own: each process sees only those that it may trace.
        Raises: ProcessLookupError: the process is gone; OSError naming the call."""

    def close(self) -> None:
        """Make no more."""


class ByNamespace:
    """By the option `pidns=` (Linux 6.18)."""

    async def new(self, pidfd: int, *, only_own: bool = False) -> int:
        return _new_by_namespace(pidfd, only_own=only_own)

    def close(self) -> None:
        return


class ByChild:
    """By a child that is born in the namespace. For one event loop."""

    def __init__(self) -> None:
        """Raises: OSError."""
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._made = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._thread: object | None = _procfs.start(self._made)
        except BaseException:
            os.close(self._made)
            raise
        self._loop.add_reader(self._made, self._take)

    async def new(self, pidfd: int, *, only_own: bool = False) -> int:
        number = next(self._numbers)
        _procfs.ask(self._thread, number, pidfd, only_own, ATTRIBUTES)
        waiting: asyncio.Future[int] = self._loop.create_future()
        self._waiting[number] = waiting
        try:
            return await waiting
        except asyncio.CancelledError:
            if not waiting.cancelled() and waiting.exception() is None:
                os.close(waiting.result())  # it was made and cancelled in the same turn of the loop
            raise

    def close(self) -> None:
        """Make no more, and cancel the calls of `new` that are not done. Safe to call twice."""
        made, self._made = self._made, -1
        if made < 0:
            return
        self._loop.remove_reader(made)
        os.close(made)
        self._thread = None
        while self._waiting:
            self._waiting.popitem()[1].cancel()

    def _take(self) -> None:
        os.eventfd_read(self._made)
        while (made := _procfs.take(self._thread)) is not None:
            number, mount, error = made
            waiting = self._waiting.pop(number)
            if waiting.done():  # cancelled
                mounts.close_all([mount])
            elif error:
                waiting.set_exception(OSError(error, f"procfs of a pid namespace: {os.strerror(error)}"))
            else:
                waiting.set_result(mount)


def why_not_by_namespace() -> str:
    """The kernel's words if procfs does not take a namespace; empty if it does. Nothing stays behind."""
    pidfd = os.pidfd_open(os.getpid())
    try:
        os.close(_new_by_namespace(pidfd))
    except OSError as error:
        return error.strerror or str(error)
    finally:
        os.close(pidfd)
    return ""


def _new_by_namespace(pidfd: int, *, only_own: bool = False) -> int:
    namespace = pidfds.pid_namespace(pidfd)
    try:
        options: syscalls.FileSystemOptions = {"pidns": namespace, **(ONLY_OWN if only_own else {})}
        return syscalls.new_filesystem("proc", options, ATTRIBUTES)
    finally:
        os.close(namespace)
