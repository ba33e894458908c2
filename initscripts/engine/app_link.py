"""The engine's end of a run's app link: datagrams to the function's sandbox, and what it says.

Owns: the socket, and the fds of what has not been sent yet. Any thread may send: a datagram goes out from the thread that
made it, unless earlier ones still wait for room in the socket, which the loop then sends. Reading is the loop's. How much
can wait is bounded by the run's budgets; an app that breaks the protocol is no longer listened to, as if it had gone.
"""

from __future__ import annotations

import os
import socket
import threading
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from sockd_initscripts.engine.signals import LoopCalls
from sockd_storage_lib.sockd_initscript import wire

_DATAGRAMS_A_TURN = 64
"""Read before others of the loop have their turn."""
_DATAGRAMS_AT_THE_END = 1024
"""Read before it is hung up. More than a socket has room for, so only an app that goes on talking is cut short."""
_ONE_FD = socket.CMSG_SPACE(array("i").itemsize)


class AppEvents(Protocol):
    """Who wants to know what happens on a link; called on the loop."""

    def app_said(self, message: dict[str, Any], payload: bytes, fd: int | None) -> None:
        """A message of the app; the fd is the callee's. Raises wire.WireError."""

    def app_gone(self) -> None:
        """The other end is closed, or broke the protocol. Once, and not after `close`."""


class AppLink:
    """One link; made in any thread."""

    def __init__(self, sock: socket.socket, calls: LoopCalls, events: AppEvents) -> None:
        self._sock = sock
        sock.setblocking(False)
        self._calls = calls
        self._events = events
        self._loop = calls.loop
        self._lock = threading.Lock()
        self._waiting: deque[tuple[bytes, int | None]] = deque()
        self._is_writing = False
        self._when_sent: Callable[[], None] | None = None
        self.is_closed = False

    def open(self) -> None:
        """Begin to listen; from any thread."""
        with self._lock:
            if not self.is_closed:
                self._calls.watched.add(self._sock.fileno(), self._read)

    def send(self, message: dict[str, Any], fd: int | None = None) -> bool:
        """Send, now or as soon as there is room; False when it would not arrive. The fd is ours to close.

        Raises wire.WireError when the message is too large."""
        try:
            data = wire.encode(message)
        except wire.WireError:
            _close(fd)
            raise
        with self._lock:
            if self.is_closed:
                _close(fd)
                return False
            if self._waiting or not self._send_now(data, fd):
                self._waiting.append((data, fd))
                if not self._is_writing:
                    self._is_writing = True
                    self._calls.post(self._wait_for_room)
            return True

    def when_sent(self, function: Callable[[], None]) -> None:
        """On the loop: call this once all that was given to `send` is sent, at once if it is; never if the link closes."""
        with self._lock:
            if self._waiting:
                self._when_sent = function
                return
        function()

    def hear_out(self) -> None:
        """On the loop, before `close`: hear what the app has said already. It may be closed, and the app gone, then."""
        if not self.is_closed:
            self._read(_DATAGRAMS_AT_THE_END)

    def close(self) -> None:
        """On the loop: hang up. Again is nothing."""
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
            self._calls.watched.remove(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()
            while self._waiting:
                _close(self._waiting.popleft()[1])

    def _send_now(self, data: bytes, fd: int | None) -> bool:
        """Whether it is sent, or need not be; under the lock."""
        ancillary = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]))]
        try:
            self._sock.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except (
            OSError
        ):  # the app is gone, or too many fds are on their way: what comes later makes no sense without this
            self._calls.post(self._give_up)
        _close(fd)
        return True

    def _wait_for_room(self) -> None:
        if not self.is_closed:
            self._loop.add_writer(self._sock.fileno(), self._flush)

    def _flush(self) -> None:
        with self._lock:
            while self._waiting:
                if not self._send_now(*self._waiting[0]):
                    return
                self._waiting.popleft()
            self._is_writing = False
            if not self.is_closed:
                self._loop.remove_writer(self._sock.fileno())
            when_sent, self._when_sent = self._when_sent, None
        if when_sent is not None:
            when_sent()

    def _read(self, limit: int = _DATAGRAMS_A_TURN) -> None:
        for _ in range(limit):
            try:
                data, ancillary, flags, _ = self._sock.recvmsg(wire.MAX_DATAGRAM, _ONE_FD, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except ConnectionResetError:  # it closed without reading all (unix(7)); what it said is there still
                continue
            except OSError:
                data, ancillary, flags = b"", [], 0
            fds = _received(ancillary)
            if not data and not fds:
                self._hang_up()
                return
            try:
                if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(fds) > 1:
                    raise wire.WireError("a datagram of the app is too long, or has more than one fd with it")
                message, payload = wire.decode(data)
                fd = fds.pop() if fds else None
                self._events.app_said(message, payload, fd)
            except wire.WireError:
                for fd in fds:
                    os.close(fd)
                self._hang_up()
            if self.is_closed:
                return

    def _give_up(self) -> None:
        """Nothing more can be sent. Who has gone may have said what has not been read yet."""
        self.hear_out()
        self._hang_up()

    def _hang_up(self) -> None:
        if not self.is_closed:
            self.close()
            self._events.app_gone()


def _received(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


def _close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)
