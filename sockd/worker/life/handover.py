"""The handover: a worker that starts takes the listening sockets of the one that runs, and later its state directory.

    new  TAKE                                     old  SOCKETS, with the descriptors (SCM_RIGHTS); serves on, then drains
    new  waits for the lock                       old  RELEASED: it has no part of the state directory any more
    new  starts, serves the accept queues; SERVES old  ends

Until SERVES the old worker keeps the sockets open, so that connections wait in their accept queues. If the new one is lost
before, the old one serves on, or, when it has drained already, starts again by execve(2). If the old one is lost, its lock and
its sandboxes go with it, and the new one starts with the sockets that it has.

This file is the side of the old worker; `takeover` is that of the new one. Owns the listening socket in the state directory,
and the connection of one successor.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from sockd.http.server.listening.inherited import Named
from sockd.http.server.listening.sockets import bind_unix, short_path

SOCKET = "handover.sock"
TAKE, REFUSED, RELEASED, SERVES = b"take", b"refused", b"released", b"serves"
MOST_BYTES = 4096
MOST_SOCKETS = 64
_CREDENTIALS = struct.Struct("3i")

_log = logging.getLogger(__name__)


class Successor:
    """The worker that takes over, as the one that ends sees it. `close` it."""

    def __init__(self, link: socket.socket) -> None:
        """Args: link: a connection on which TAKE has come."""
        self._link = link
        self._loop = asyncio.get_running_loop()
        self.pid = peer_pid(link)
        self.ended: asyncio.Future[bool] = self._loop.create_future()
        """Whether it serves; False: it was lost before."""
        self._loop.add_reader(link.fileno(), self._on_readable)

    def give(self, named: Sequence[Named]) -> None:
        """Send it the sockets."""
        names = ":".join(name for name, _ in named)
        try:
            socket.send_fds(self._link, [names.encode()], [sock.fileno() for _, sock in named])
        except OSError as error:
            _log.warning("the worker that takes over cannot be reached: %s", error.strerror)
            self._end(serves=False)

    def refuse(self) -> None:
        """Tell it that this worker ends already, and close the connection."""
        self._send(REFUSED)
        self.close()

    def release(self) -> None:
        """Tell it that the state directory is free."""
        self._send(RELEASED)

    def _send(self, message: bytes) -> None:
        try:
            self._link.send(message)
        except OSError as error:
            _log.warning("the worker that takes over cannot be reached: %s", error.strerror)
            self._end(serves=False)

    def _on_readable(self) -> None:
        try:
            message = self._link.recv(MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        self._end(serves=message == SERVES)

    def _end(self, *, serves: bool) -> None:
        self._loop.remove_reader(self._link.fileno())
        if not self.ended.done():
            self.ended.set_result(serves)

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        if self._link.fileno() >= 0:
            self._loop.remove_reader(self._link.fileno())
            self._link.close()


class HandoverSocket:
    """The socket at which a worker that starts asks this one to hand over. `close` it."""

    def __init__(self, directory: Path, take: Callable[[Successor], bool]) -> None:
        """Args: directory: the locked state directory; take: called with each successor; False: it is refused."""
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._sock = bind_unix(directory / SOCKET, kind=socket.SOCK_SEQPACKET)
        self._sock.setblocking(False)
        self._sock.listen(1)
        self._asking: set[socket.socket] = set()
        self._loop.add_reader(self._sock.fileno(), self._on_connection)

    def _on_connection(self) -> None:
        try:
            link, _ = self._sock.accept()
        except OSError as error:  # the peer has gone, or there is no descriptor left
            _log.warning("no handover: %s", error.strerror)
            return
        link.setblocking(False)
        self._asking.add(link)
        self._loop.add_reader(link.fileno(), self._on_asked, link)

    def _on_asked(self, link: socket.socket) -> None:
        self._loop.remove_reader(link.fileno())
        self._asking.discard(link)
        try:
            message = link.recv(MOST_BYTES)
        except OSError:
            message = b""
        if message != TAKE:
            link.close()
            return
        successor = Successor(link)
        if not self._take(successor):
            successor.refuse()

    def close(self) -> None:
        """Take no further successor."""
        for sock in (self._sock, *self._asking):
            self._loop.remove_reader(sock.fileno())
            sock.close()
        self._asking.clear()


def peer_pid(link: socket.socket) -> int:
    """Return the pid of the process that connected or listens at the other end."""
    pid, _, _ = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid)


def connect(directory: Path) -> socket.socket:
    """Connect to the worker of a state directory. Raises: OSError: none listens there."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    directory_fd = -1
    try:
        directory_fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        link.connect(short_path(directory_fd, SOCKET))
    except BaseException:
        link.close()
        raise
    finally:
        if directory_fd >= 0:
            os.close(directory_fd)
    return link
