"""The daemon's end of the wires to one engine process: what must arrive is queued, what would come too late is not sent.

Owns the sockets, and copies of the descriptors that wait to be sent. Knows messages, not what they mean.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from sockd_initscripts import wire
from sockd_initscripts.errors import WireError

SEND_BUFFER_BYTES = 4 << 20
SO_SNDBUFFORCE = 32

_log = logging.getLogger(__name__)


class EngineWire:
    """Calls `on_message(message, datagram)` for each message, and `on_end()` once: at the end, or for a broken wire."""

    def __init__(
        self,
        sock: socket.socket,
        starts: socket.socket,
        *,
        on_message: Callable[[wire.ToDaemon, bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._starts = starts
        self._on_message = on_message
        self._on_end = on_end
        self._scratch = bytearray(wire.MAX_DATAGRAM)
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()
        for each in (sock, starts):
            each.setblocking(False)
            each.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, SEND_BUFFER_BYTES)
        self._loop.add_reader(sock.fileno(), self._readable)

    def tell(self, message: wire.ToEngine, fds: Sequence[int] = ()) -> None:
        """Send what must arrive: now, or as the engine reads. The caller keeps its descriptors."""
        if self._sock.fileno() < 0:
            return
        try:
            data = wire.encode(message)
            if self._unsent or not self._send(self._sock, data, fds):
                self._queue(data, fds)
        except (OSError, WireError) as error:
            _log.error("the initscript engine cannot be written to: %s", error)
            self._finish()

    def start_now(self, message: wire.Start, payload: bytes, fds: Sequence[int]) -> bool:
        """Send at once or not at all; False: something else waits, or the engine does not keep up.

        Raises: WireError, when it is too long; OSError."""
        return not self._unsent and self._send(self._starts, wire.encode(message, payload), fds)

    def close(self) -> None:
        """Close the sockets without telling `on_end`; safe to call twice."""
        fd = self._sock.fileno()
        if fd < 0:
            return
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)
        self._sock.close()
        self._starts.close()
        while self._unsent:
            wire.close_all(self._unsent.popleft()[1])

    def _send(self, sock: socket.socket, data: bytes, fds: Sequence[int]) -> bool:
        """False: it does not fit now. Raises: OSError other than the end of the wire, which the reader sees."""
        try:
            wire.send(sock, data, fds)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        return True

    def _queue(self, data: bytes, fds: Sequence[int]) -> None:
        if not self._unsent:
            self._loop.add_writer(self._sock.fileno(), self._writable)
        self._unsent.append((data, tuple(os.dup(fd) for fd in fds)))

    def _writable(self) -> None:
        while self._unsent:
            data, fds = self._unsent[0]
            try:
                if not self._send(self._sock, data, fds):
                    return
            except OSError as error:
                _log.error("the initscript engine cannot be written to: %s", error)
                self._finish()
                return
            self._unsent.popleft()
            wire.close_all(fds)
        self._loop.remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        try:
            data, fds = wire.receive(self._sock, self._scratch)
            wire.close_all(fds)
            if data:
                self._on_message(wire.decode_to_daemon(data, len(fds))[0], data)
        except BlockingIOError:
            return
        except WireError as error:
            _log.error("the initscript engine broke its protocol: %s", error)
            data = b""
        if not data:
            self._finish()

    def _finish(self) -> None:
        self.close()
        self._on_end()
