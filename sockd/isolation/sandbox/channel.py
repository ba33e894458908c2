"""The daemon's end of a sandbox's channel: it sends frames without waiting, passes on received frames, and reports the end once.

The work per loop iteration is bounded; `sockd.isolation.sandbox.read_turns` schedules a sandbox that sends more.

Owns the socket: a raw non-blocking socket with a reader on the loop, because a transport takes 100 µs to create instead of 10,
and each cold start needs one. Knows frames, not their meaning."""

from __future__ import annotations

import array
import asyncio
import socket
from collections.abc import Callable, Mapping

from sockd.isolation.sandbox.frame_decoder import FrameDecoder
from sockd.isolation.sandbox.read_turns import FRAMES_PER_TURN, READ_BYTES, Queue, ReadTurns, Series
from sockd_zygote import protocol

_scratch = memoryview(bytearray(READ_BYTES))
"""Where all channels read to. A buffer for each read, cut to what has come, would stay in the heap as long as its sandbox, and
leave a hole that is too small for the next read: the heap of a busy worker grew by 30 KB with each cold start."""
SMALL_BYTES = 4096
"""A read of less, in the middle of an answer, is a small one."""


class Channel:
    """Calls, after `open`, `on_frame(kind, number, body)` for each frame, and `on_end(error)` once, when the peer closed or broke
    the rules."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        limits: Mapping[int, int],
        turns: ReadTurns,
        on_frame: Callable[[int, int, bytes], None],
        on_end: Callable[[Exception | None], None],
    ) -> None:
        """Args: limits: the frames that may come (`protocol.sandbox_limits`)."""
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._decoder = FrameDecoder(limits)
        self._turns = turns
        self._on_frame = on_frame
        self._on_end = on_end
        self._unsent: bytes | memoryview = b""
        self._paused = False
        self._queue: Queue | None = None
        """Where it waits for its turn; the loop does not watch it meanwhile."""
        self._has_more = False
        """Frames have been read that this turn has not handled."""
        self._series = Series()

    def open(self) -> None:
        """Begin to read. Raises: OSError: the kernel has no room to watch the socket."""
        self._sock.setblocking(False)
        self._loop.add_reader(self._sock.fileno(), self._readable)

    def send(self, kind: int, number: int, *parts: bytes) -> None:
        """As `send_frame`, for one that is not encoded yet."""
        self.send_frame(protocol.encode_frame(kind, number, *parts))

    def send_frame(self, data: bytes) -> None:
        """Send one frame now, or as the peer takes it. After the end of the channel, which was reported already, do
        nothing."""
        if self._sock.fileno() < 0:
            return
        if self._unsent:
            self._unsent = b"".join((self._unsent, data))
            return
        self._push(data)

    def send_first(self, kind: int, number: int, body: bytes, fd: int) -> None:
        """Send the first frame, with a copy of a descriptor attached; the caller keeps its own.

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
        """Read no more for now, but for what this turn still handles. The peer then waits as soon as the kernel's buffer is
        full; its end is not seen either."""
        if not self._paused and self._sock.fileno() >= 0:
            self._paused = True
            if self._queue is None:
                self._loop.remove_reader(self._sock.fileno())

    def resume(self) -> None:
        """Go on reading."""
        if self._paused and self._sock.fileno() >= 0:
            self._paused = False
            if self._queue is None:
                self._loop.add_reader(self._sock.fileno(), self._readable)
            else:
                self._queue.wait(self)

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
        size = self._read()
        if size:
            self._handle(size)

    def go_on(self) -> int:
        """Its turn in the queue where it waits; how many units of work that was."""
        if self._paused or self._sock.fileno() < 0:
            return 0
        size = 0 if self._has_more else self._read()
        if size or self._has_more:
            return max(self._handle(size), size >> 10)
        self._queue = None
        if self._sock.fileno() >= 0:
            self._loop.add_reader(self._sock.fileno(), self._readable)
        return 0

    def _read(self) -> int:
        """Give the decoder what one read gives; how much that was."""
        try:
            size = self._sock.recv_into(_scratch)
        except BlockingIOError:
            return 0
        except ConnectionResetError:  # the peer ended without reading all that was sent to it (unix(7)): as any end
            size = 0
        except OSError as error:
            self._end(error)
            return 0
        if not size:
            self._end(None)
            return 0
        self._decoder.feed(_scratch[:size])
        return size

    def _handle(self, size: int) -> int:
        """Pass on the frames that are whole, as many as a turn may; how many those were.

        Args: size: of what this turn has read."""
        count = kind = 0
        decoder = self._decoder
        try:
            while count < FRAMES_PER_TURN and (frame := decoder.next_frame()) is not None:
                count += 1
                kind = frame[0]
                self._on_frame(*frame)
        except protocol.ProtocolError as error:
            self._end(error)
            return count
        self._has_more = count == FRAMES_PER_TURN
        if self._has_more:
            self._wait(self._turns.small)
        elif size == READ_BYTES:
            self._wait(self._turns.bulk)
        elif self._queue is not None:
            self._wait(self._queue)
        elif kind == protocol.CHUNK and size < SMALL_BYTES and self._series.is_too_long():
            self._wait(self._turns.small)
        return count

    def _wait(self, queue: Queue) -> None:
        """Go on in a turn of that queue, and do not watch the socket until then."""
        if self._sock.fileno() < 0:
            return
        if self._queue is None and not self._paused:
            self._loop.remove_reader(self._sock.fileno())
        self._queue = queue
        if not self._paused:
            queue.wait(self)

    def _end(self, error: Exception | None) -> None:
        self.close()
        self._on_end(error)
