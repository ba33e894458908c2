"""One accepted socket as its connection uses it: bytes in when there are some, bytes out as the peer takes them.

It does what a transport of asyncio does, and lets the server say when it is read from: by the loop, as soon as something has
come, once it is `kept`; before that by the `AcceptQueue`, in its turn.

Owns the socket, which is closed in a step of its own, never in the middle of what the connection does. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from itertools import islice
from typing import Any, Protocol

from sockd.http.server.listening.accept_queue import AcceptQueue

_log = logging.getLogger("sockd.http")

READ_BYTES = 64 * 1024
"""At a time."""
HIGH_BYTES, LOW_BYTES = 64 * 1024, 16 * 1024
"""Unsent: with more the connection is to write nothing for now, until it is this little."""
SENT_AT_ONCE = 64
"""Pieces; the kernel takes 1024."""


class Reads(Protocol):
    """A connection, as its transport knows it."""

    def buffer_updated(self, nbytes: int) -> None:
        """So much has been read into the scratch."""

    def eof_received(self) -> bool:
        """The peer will send no more. Returns: whether it is still to be written to."""

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...

    def unsent_changed(self, nbytes: int) -> None:
        """The peer has not taken all, or some of what it had not: so much memory waits for it, 0 when all is sent."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection; no other method is called after this one."""


class Transport:
    """Made with a socket that does not block; read from once `resume_reading` was called."""

    def __init__(self, sock: socket.socket, reads: Reads, scratch: memoryview, accept_queue: AcceptQueue) -> None:
        """Args: scratch: where bytes are read to; of all connections, as they are taken out at once."""
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self.fd = sock.fileno()
        self._reads = reads
        self._scratch = scratch
        self._accept_queue = accept_queue
        self.is_kept = False
        self._is_reading = False
        self.is_at_eof = False
        """The peer will send no more: it may wait for its answers, or be gone."""
        self._is_closing = False
        self._is_ended = False
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = self._kept_bytes = 0
        """What is to be sent, and what the objects take of which it is the rest."""
        self._is_full = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`peername`, `sockname` or `socket`, as of asyncio's transports."""
        try:
            if name == "socket":
                return self._sock
            return self._sock.getpeername() if name == "peername" else self._sock.getsockname()
        except OSError:
            return default

    def is_closing(self) -> bool:
        """Whether the transport was closed, or the peer is gone."""
        return self._is_closing

    # -- reading

    def resume_reading(self) -> None:
        """Have the connection hear of what comes."""
        if self._is_reading or self._is_closing or self.is_at_eof:
            return
        self._is_reading = True
        if self.is_kept:
            self._loop.add_reader(self.fd, self.read)
        else:
            self._accept_queue.add(self)

    def pause_reading(self) -> None:
        """Leave what comes in the kernel's buffer."""
        if not self._is_reading:
            return
        self._is_reading = False
        if self.is_kept:
            self._loop.remove_reader(self.fd)
        else:
            self._accept_queue.remove(self)

    def keep(self) -> None:
        """From now on it is read from whenever there is something: it has asked for something, and may again."""
        if self.is_kept or self._is_closing:
            return
        was_reading = self._is_reading
        self.pause_reading()
        self.is_kept = True
        if was_reading:
            self.resume_reading()

    def read(self) -> int:
        """Read once, and pass the data to the connection. Returns: the number of bytes."""
        if self._is_closing or self.is_at_eof:
            return 0
        try:
            count = self._sock.recv_into(self._scratch)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self._end(error)
            return 0
        try:
            if count:
                self._reads.buffer_updated(count)
            else:
                self._read_eof()
        except Exception as error:
            _log.error("a connection failed", exc_info=error)  # a bug of ours
            self._end(error)
        return count

    def has_hung_up(self) -> bool:
        """Whether the peer has sent its last byte and none is left to be read, seen or not."""
        if self.is_at_eof or self._is_closing:
            return True
        try:
            return not self._sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    def _read_eof(self) -> None:
        self.pause_reading()
        self.is_at_eof = True
        if not self._reads.eof_received():
            self.close()

    # -- writing

    def write(self, data: bytes) -> None:
        """Send it now, as far as the peer takes it, and the rest later."""
        if self._is_closing:
            return
        if self._unsent:
            self._put_by(memoryview(data))
            self._tell_if_full()
            return
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._end(error)
            return
        if sent < len(data):
            self._put_by(memoryview(data)[sent:])
            self._loop.add_writer(self.fd, self._writable)
            self._reads.unsent_changed(self._kept_bytes)
            self._tell_if_full()

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        """As `write`, of several parts."""
        if self._is_closing:
            return
        is_first = not self._unsent
        for part in parts:
            self._put_by(memoryview(part))
        if is_first:
            self._send()
            if self._unsent:
                self._loop.add_writer(self.fd, self._writable)
                self._reads.unsent_changed(self._kept_bytes)
        self._tell_if_full()

    def _put_by(self, rest: memoryview) -> None:
        if rest:
            self._unsent.append(rest)
            self._unsent_bytes += len(rest)
            self._kept_bytes += _kept(rest)

    def _tell_if_full(self) -> None:
        if self._unsent_bytes > HIGH_BYTES and not self._is_full:
            self._is_full = True
            self._reads.pause_writing()

    def _send(self) -> None:
        """As much as the peer takes."""
        unsent = self._unsent
        try:
            sent = self._sock.sendmsg(list(islice(unsent, SENT_AT_ONCE)))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        self._unsent_bytes -= sent
        while sent:  # views: what is left of megabytes is not copied each time that the peer has taken some
            first = unsent.popleft()
            if sent < len(first):
                unsent.appendleft(first[sent:])
                return
            sent -= len(first)
            self._kept_bytes -= _kept(first)

    def _writable(self) -> None:
        self._send()
        if self._is_ended:
            return
        self._reads.unsent_changed(self._kept_bytes)
        if self._is_ended:
            return
        if not self._unsent:
            self._loop.remove_writer(self.fd)
            if self._is_closing:
                self._end(None)
                return
        if self._is_full and self._unsent_bytes <= LOW_BYTES:
            self._is_full = False
            self._reads.resume_writing()

    # -- the end

    def close(self) -> None:
        """Read no more, and end when all that was written is sent."""
        if self._is_closing:
            return
        self.pause_reading()
        self._is_closing = True
        if not self._unsent:
            self._end(None)

    def abort(self) -> None:
        """End, whatever is unsent."""
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._is_ended:
            return
        self.pause_reading()
        self._is_closing = self._is_ended = True
        if self._unsent:
            self._unsent.clear()
            self._unsent_bytes = self._kept_bytes = 0
            self._loop.remove_writer(self.fd)
        self._loop.call_soon(self._lost, error)

    def _lost(self, error: Exception | None) -> None:
        try:
            self._reads.connection_lost(error)
        finally:
            self._sock.close()
            del self._reads  # it holds this object


def _kept(rest: memoryview) -> int:
    """The bytes of the object that a view keeps in memory, however little of it is left."""
    return len(rest.obj)  # type: ignore[arg-type]
