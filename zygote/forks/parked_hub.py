"""The hub of gevent that an init has left: each fork has its greenlets, and makes its event loop's two descriptors anew.

libev, gevent's loop, holds an epoll instance and an eventfd, which forks would share. In a fork `/dev/null` is at their numbers
until `gevent.hub.reinit` has the loop make both again, as gevent does in each process that it forks. The idle threads of the
hub's pool, which resolve names, are ended before: the pool starts others when it is used.
"""

from __future__ import annotations

import os
import sys
from time import monotonic

from sockd_zygote.forks.running_threads import ADVICE

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from typing import Any

EPOLL, EVENTFD = "anon_inode:[eventpoll]", "anon_inode:[eventfd]"
LIBEV = "gevent.libev.corecext"
"""The module of the loop that is known here; others keep other descriptors."""
ENDS_S = 1.0
"""How long the idle threads of a pool may take to end."""


class ParkedHub:
    """The hub of this process's only thread, if there is one. Made after the init, before threads are looked at."""

    def __init__(self, own: set[int]) -> None:
        """Args: own: descriptors that are not the function's."""
        self.numbers: list[int] = []
        """The loop's descriptors: each fork has something else there until `restore`."""
        self.complaints: list[str] = []
        """Why forks cannot have the hub."""
        self._hub = hub()
        if self._hub is None:
            return
        end_idle_threads(self._hub)
        loop = self._hub.loop
        if type(loop).__module__ != LIBEV:
            kind = type(loop).__module__
            self.complaints.append(f"init leaves gevent's loop {kind}, and only that of libev can be kept: {ADVICE}")
        elif loop.activecnt:
            self.complaints.append(
                f"init leaves greenlets that wait for a time or a connection in gevent's hub: {ADVICE}"
            )
        else:
            self._find(loop.fileno(), own)

    def restore(self) -> None:
        """Have the loop make its descriptors anew when it runs next."""
        if self._hub is not None:
            sys.modules["gevent.hub"].reinit(self._hub)

    def _find(self, epoll: int, own: set[int]) -> None:
        """Note the loop's descriptors. The loop does not name its eventfd, so it must be the only one."""
        numbers = {int(name) for name in os.listdir("/proc/self/fd")} - own
        eventfds = [fd for fd in numbers if target(fd) == EVENTFD]
        if target(epoll) == EPOLL and len(eventfds) == 1:
            self.numbers = [epoll, *eventfds]
        else:
            found = f"init leaves gevent's hub and {len(eventfds)} eventfds, of which one is the hub's"
            self.complaints.append(f"{found}: {ADVICE}")


def hub() -> Any:
    """Return the hub of this thread; None: there is none, or it has no loop."""
    get = getattr(sys.modules.get("gevent._hub_local"), "get_hub_if_exists", None)
    found = get() if get is not None else None
    return found if getattr(found, "loop", None) is not None else None


def end_idle_threads(hub: Any) -> None:
    """End the threads of a hub's pool, if none has anything to do."""
    pool = hub._threadpool
    if pool is None or not pool.size or len(pool):
        return
    left, ends_s = len(os.listdir("/proc/self/task")) - pool.size, monotonic() + ENDS_S
    pool.size = 0
    while len(os.listdir("/proc/self/task")) > left and monotonic() < ends_s:
        os.sched_yield()  # a thread tells its pool just before it ends


def target(fd: int) -> str:
    """Return what a descriptor is of; empty: it is not open."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
