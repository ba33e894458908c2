"""A connection to the program of a service, of which reading goes on when writing has failed.

A program may answer before it has read all of a request, and close. The kernel resets the connection then: what is written fails,
but the answer is there to be read. (A transport of the event loop drops it with the first write that fails.)

Owns the socket.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque

from sockd.linux.readiness import readable

MOST_UNSENT_BYTES = 64 * 1024
"""`drain` waits while more than that has not been taken by the kernel."""


class ProgramConnection:
    """`read`, and `write` with `drain`, until `close`, once."""

    def __init__(self, sock: socket.socket) -> None:
        """Args: sock: connected, of TCP, not blocking; owned from now on."""
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._is_waiting = False
        """Whether the loop watches for room in the socket."""
        self._has_ended = False
        """Whether nothing is to be sent behind what is unsent."""
        self._taken: asyncio.Future[None] | None = None
        self._error: OSError | None = None
        """Why nothing can be sent any more."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def read(self, n: int, /) -> bytes:
        """What has come; empty: its end. Raises: OSError, also if it has ended, and what was written could not be sent."""
        while True:
            try:
                data = self._sock.recv(n)
            except BlockingIOError:
                await readable(self._sock.fileno())
                continue
            if not data and self._error is not None:
                raise self._error
            return data

    def write(self, data: bytes, /) -> None:
        """Send in the background. What cannot be sent is dropped; `drain` raises then, as does `read` behind all that came."""
        if data and self._error is None:
            self._unsent.append(memoryview(data))
            self._unsent_bytes += len(data)
            if not self._is_waiting:
                self._send()

    async def drain(self) -> None:
        """Wait until most of what was written has been taken. Raises: OSError: it could not be sent."""
        while self._unsent_bytes > MOST_UNSENT_BYTES:
            self._taken = self._loop.create_future()
            await self._taken
        if self._error is not None:
            raise self._error

    def write_eof(self) -> None:
        """Send no more than what was written."""
        self._has_ended = True
        if not self._unsent:
            self._end()

    def break_off(self) -> None:
        """Have a `read` that waits come to the end. Safe to call at any time."""
        self._end(socket.SHUT_RDWR)

    def close(self) -> None:
        """Drop what is unsent. No other call may be under way."""
        self._watch(wanted=False)
        self._sock.close()

    def _send(self) -> None:
        """Send as much as the socket takes, and the rest when it takes more."""
        try:
            while self._unsent:
                part = self._unsent[0]
                sent = self._sock.send(part)
                self._unsent_bytes -= sent
                if sent == len(part):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = part[sent:]
        except BlockingIOError:
            pass
        except OSError as error:
            self._error = error
            self._unsent.clear()
            self._unsent_bytes = 0
            self._has_ended = True  # a program that has not reset the connection is to see that no more comes
        self._watch(wanted=bool(self._unsent))
        if self._has_ended and not self._unsent:
            self._end()
        if self._taken is not None and not self._taken.done() and self._unsent_bytes <= MOST_UNSENT_BYTES:
            self._taken.set_result(None)

    def _watch(self, *, wanted: bool) -> None:
        if wanted and not self._is_waiting:
            self._loop.add_writer(self._sock.fileno(), self._send)
        elif self._is_waiting and not wanted:
            self._loop.remove_writer(self._sock.fileno())
        self._is_waiting = wanted

    def _end(self, how: int = socket.SHUT_WR) -> None:
        try:
            self._sock.shutdown(how)
        except OSError:  # the program has reset it, or it is closed
            return
