"""What ends a worker: a signal, the end of its farm, or another worker that takes over.

Owns the signal handlers of the process while the worker serves. Knows nothing of how a worker is drained.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from sockd.http.server.listening.inherited import HTTP, KEYED, MANAGEMENT, RUN, Named
from sockd.http.server.server import HttpServer
from sockd.worker.life.drain import Drain
from sockd.worker.life.handover import Successor
from sockd.worker.life.notify import STOPPING, notify

_log = logging.getLogger(__name__)

STOP = signal.SIGTERM, signal.SIGINT
RESTART = signal.SIGUSR2
"""As of nginx and gunicorn: start the program that is installed now, with the same sockets."""


class Ending(NamedTuple):
    """Why a worker ends."""

    status: int = 0
    """The exit status of its process."""
    restarts: bool = False
    """The process starts the worker again, by execve(2)."""
    successor: Successor | None = None
    """The worker that takes over."""


class Ended(NamedTuple):
    """How a daemon has ended."""

    status: int
    """The exit status of the process."""
    again: Sequence[Named] = ()
    """The sockets with which the process is to start the worker again; none: it is to exit."""
    is_fallback: bool = False
    """Whether the worker starts again because its successor was lost, maybe by a configuration that is wrong now."""


class Endings:
    """What has asked the worker to end."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ending: asyncio.Future[Ending] = self._loop.create_future()
        self.stopped: asyncio.Future[None] = self._loop.create_future()
        """The worker is to end soon, whatever follows it: a stop has come."""
        self._status = 0
        # Before anything is started: a signal that the parent ignores is ignored in its child as well.
        self._loop.add_signal_handler(RESTART, self._begin, Ending(restarts=True))

    def watch_stops(self) -> None:
        """Handle the signals that stop the worker, from now on: a worker that starts may end by them at once."""
        for number in STOP:
            self._loop.add_signal_handler(number, self.stop)

    def stop(self, status: int = 0) -> None:
        """End the worker. Args: status: 1: its farm has ended by itself."""
        self._status = self._status or status
        if not self.stopped.done():
            self.stopped.set_result(None)
        self._begin(Ending(status))

    def hand_over(self, successor: Successor) -> bool:
        """End the worker for its successor; False: it ends already."""
        return self._begin(Ending(successor=successor))

    def _begin(self, ending: Ending) -> bool:
        if self._ending.done():
            return False
        self._ending.set_result(ending)
        return True

    async def first(self) -> Ending:
        """Wait for the first cause."""
        return await self._ending

    def revoke(self) -> bool:
        """Forget a cause that has gone, such as a successor that was lost; False: the worker was stopped meanwhile."""
        if self.stopped.done():
            return False
        self._ending = self._loop.create_future()
        return True

    def decided(self, ending: Ending) -> Ending:
        """Return the ending with what has come since: a stop takes a restart back, and the end of the farm is a failure."""
        return ending._replace(status=self._status, restarts=ending.restarts and not self.stopped.done())


def named_sockets(servers: Sequence[HttpServer], are_kept: bool) -> list[Named]:
    """Return copies of the servers' listening sockets, named for the worker that follows; the caller owns them.

    Args: servers: public port, run socket, management socket, management port if there is one; are_kept: systemd keeps the
        ports, so that they stay without a name of ours."""
    names = (HTTP, RUN, MANAGEMENT, KEYED)
    named = [(name, sock) for name, server in zip(names, servers, strict=False) for sock in server.sockets]
    return [("" if are_kept and sock.family != socket.AF_UNIX else name, sock.dup()) for name, sock in named]


async def until_ended(
    endings: Endings, drain: Drain, sockets: Callable[[], list[Named]], why_not_again: Callable[[], Awaitable[str]]
) -> tuple[Ending, Sequence[Named]]:
    """Serve until something ends the worker for good; a successor that is lost while this one serves, or that would not start,
    is forgotten.

    Args: sockets: makes copies of the listening sockets; why_not_again: as of `serve`.
    Returns: why it ends, and the sockets that the next worker serves; none, if no worker follows."""
    while True:
        ending = await endings.first()
        successor = ending.successor
        if successor is None and not ending.restarts:
            notify(STOPPING)
            return ending, ()
        if successor is None and (why := await _unless_stopped(endings, why_not_again)) and endings.revoke():
            _log.error("serving on, not restarted: the sockd that is installed now would not start: %s", why)
            continue
        kept = sockets()
        if successor is None:
            _log.info("restarting: serving on until the requests under way have ended")
            await drain.serve_on(endings.stopped)
        else:
            _log.info(
                "the sockd with pid %d takes over: serving on until the requests under way have ended", successor.pid
            )
            successor.give(kept)
            await drain.serve_on(endings.stopped, successor.ended)
            if successor.ended.done() and endings.revoke():
                _log.warning("the sockd with pid %d ended before it took over: serving on", successor.pid)
                drain.stay()
                successor.close()
                close_all(kept)
                continue
        ending = endings.decided(ending)
        if successor is None and not ending.restarts:
            close_all(kept)
            kept = []
        return ending, kept


async def _unless_stopped(endings: Endings, why_not_again: Callable[[], Awaitable[str]]) -> str:
    """Return what it says; empty, at once, when a stop comes."""
    asked = asyncio.ensure_future(why_not_again())
    either: list[asyncio.Future[Any]] = [asked, endings.stopped]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if asked.done():
        return asked.result()
    asked.cancel()
    await asyncio.wait([asked])
    return ""


async def followed(ending: Ending, kept: Sequence[Named], endings: Endings) -> Ended:
    """Wait until the worker that follows serves, if it is another process, and return how this process ends.

    Called when everything but the listening sockets is taken down."""
    again = ending.restarts
    if (successor := ending.successor) is not None:
        _log.info("the state directory is free for the sockd with pid %d", successor.pid)
        successor.release()
        waited: list[asyncio.Future[Any]] = [successor.ended, endings.stopped]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        again = successor.ended.done() and not successor.ended.result() and not endings.stopped.done()
        if again:
            _log.warning("the sockd with pid %d ended before it served: this one starts again", successor.pid)
        successor.close()
    if again:
        return Ended(ending.status, kept, is_fallback=successor is not None)
    close_all(kept)
    for number in STOP:
        # Everything is closed. A further signal while the interpreter exits would turn a clean end into a failure.
        signal.signal(number, signal.SIG_IGN)
    return Ended(ending.status)


def close_all(named: Sequence[Named]) -> None:
    """Close sockets."""
    for _, sock in named:
        sock.close()
