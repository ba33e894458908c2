"""The daemon's end of a sandbox's channel: frames out without waiting, frames in as they come, the end exactly once.

Owns the socket. A raw non-blocking socket on the loop's reader, not a transport: making one costs 10 µs instead of 100,
and a cold start makes one. Knows frames, not what they mean.
"""

from __future__ import annotations

import array
import asyncio
import socket
from collections.abc import Callable, Mapping

from zygote import protocol

READ_BYTES = 1 << 16
"""Under malloc's mmap threshold: a larger buffer would be mapped and unmapped for each answer."""


class Channel:
    """Calls `on_frame(kind, number, body)` for each frame and `on_end(error)` once, when the peer closed or broke the rules."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        limits: Mapping[int, int],
        on_frame: Callable[[int, int, bytes], None],
        on_end: Callable[[Exception | None], None],
    ) -> None:
        """Args: limits: the frames that may come (`protocol.sandbox_limits`)."""
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._decoder = protocol.FrameDecoder(limits)
        self._on_frame = on_frame
        self._on_end = on_end
        self._unsent: bytes | memoryview = b""
        self._paused = False
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._readable)

    def send(self, kind: int, number: int, *parts: bytes) -> None:
        """As `send_frame`, for one that is not encoded yet."""
        self.send_frame(protocol.encode_frame(kind, number, *parts))

    def send_frame(self, data: bytes) -> None:
        """Send one frame now, or as the peer takes it. After the end it does nothing: the end was told already."""
        if self._sock.fileno() < 0:
            return
        if self._unsent:
            self._unsent = b"".join((self._unsent, data))
            return
        self._push(data)

    def send_first(self, kind: int, number: int, body: bytes, fd: int) -> None:
        """Send the first frame, with a copy of a descriptor beside it; the caller keeps its own.

        Raises: OSError: the kernel has no room for it, or for as much as its first bytes."""
        data = protocol.encode_frame(kind, number, body)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", (fd,)))]
        try:
            sent = self._sock.sendmsg([data], rights)
        except ConnectionError:
            return  # the reader sees the end
        if sent < len(data):
            self._push(data[sent:])

    def await_result(self, number: int | None) -> None:
        """Only a RESULT of this number may begin to come."""
        self._decoder.awaited = number

    def pause(self) -> None:
        """Read no more for now, but for what has been read already. The peer then waits as soon as the kernel's buffer is full;
        its end is not seen either."""
        if not self._paused and self._sock.fileno() >= 0:
            self._paused = True
            self._loop.remove_reader(self._sock.fileno())

    def resume(self) -> None:
        """Go on reading."""
        if self._paused and self._sock.fileno() >= 0:
            self._paused = False
            self._loop.add_reader(self._sock.fileno(), self._readable)

    def close(self) -> None:
        """Close the socket without telling `on_end`; safe to call twice."""
        fd = self._sock.fileno()
        if fd >= 0:
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)
            self._sock.close()

    def _push(self, data: bytes | memoryview) -> None:
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the reader sees the end, and why
        # A view: what is left of megabytes is not copied each time that the peer has taken some.
        self._unsent = memoryview(data)[sent:] if sent < len(data) else b""
        if self._unsent:
            self._loop.add_writer(self._sock.fileno(), self._writable)

    def _writable(self) -> None:
        self._loop.remove_writer(self._sock.fileno())
        self._push(self._unsent)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:  # the peer ended without reading all that was sent to it (unix(7)): as any end
            data = b""
        except OSError as error:
            self._end(error)
            return
        if not data:
            self._end(None)
            return
        try:
            self._decoder.feed(data)
            while (frame := self._decoder.next_frame()) is not None:
                self._on_frame(*frame)
        except protocol.ProtocolError as error:
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        self.close()
        self._on_end(error)
