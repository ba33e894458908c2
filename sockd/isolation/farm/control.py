"""The daemon's end of a Zygote's control socket: numbered requests, each with one answer, and descriptors in both directions.

Owns the socket and received descriptors until a waiter takes them. A Zygote runs packages: its answers are
untrusted, and one that breaks the protocol ends the wire.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sockd.base.errors import SandboxFailed
from sockd_zygote import linux, protocol

_buffer = bytearray(protocol.CONTROL_ANSWER_MAX_BYTES)
"""For all wires: a datagram is decoded before the next is read."""


MOST_STRAYS = 64
"""Answers that are not waited for, in the life of a wire. There is one for a request that was given up twice; a Zygote that sends
more sends them for the daemon's time."""


MOST_STATUS = 0xFFFF
"""A wait status: an exit code in the upper byte, a signal and a flag in the lower."""


class ZygoteGone(SandboxFailed):
    """The Zygote died, or broke the protocol and was given up, before it answered."""

    module = ""
    """The module that was being imported, for an `import`."""
    stage = ""
    """What a `template` was doing, in words."""


class ZygoteLate(ZygoteGone):
    """The Zygote did not answer within the deadline and was given up."""


class ZygoteRefused(SandboxFailed):
    """The Zygote could not do what it was asked; it lives."""


@dataclass(slots=True)
class Answer:
    """A Zygote's answer. The receiver owns `fds`."""

    message: dict[str, Any]
    fds: list[int]


class ControlWire:
    """Requests to one Zygote. `on_end` is called once, when the wire ends for any reason but `close`."""

    def __init__(self, sock: socket.socket, on_end: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._on_end = on_end
        self._pending: dict[int, asyncio.Future[Answer]] = {}
        self._next_id = 1
        self._is_late = False
        self._strays = 0
        self._unsent: list[tuple[bytes, Sequence[int]]] = []
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._readable)

    @property
    def closed(self) -> bool:
        return self._sock.fileno() < 0

    @property
    def in_flight(self) -> int:
        """Requests that are not answered yet."""
        return len(self._pending)

    async def request(self, op: str, fds: Sequence[int], *, deadline_s: float, **fields: object) -> Answer:
        """Send one request and wait for its answer. The fds are copied by the kernel; the caller keeps its own.

        Raises: ZygoteRefused; ZygoteGone, also when the deadline passes (a Zygote that hangs is given up); OSError, when
            the request cannot be sent."""
        if self.closed:
            raise ZygoteGone("the Zygote is gone")
        number, self._next_id = self._next_id, self._next_id + 1
        try:
            data = protocol.encode_control({"op": op, "id": number, **fields})
        except protocol.ProtocolError as error:
            raise ZygoteRefused(str(error)) from None
        self._push(data, fds)
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._pending[number] = future
        timer = self._loop.call_later(deadline_s, self._give_up)
        try:
            return await future
        except SandboxFailed:
            raise
        except BaseException:  # cancelled
            await self._abandon(number, future)
            raise
        finally:
            timer.cancel()
            self._pending.pop(number, None)

    async def _abandon(self, number: int, future: asyncio.Future[Answer]) -> None:
        """Wait for an answer that is of no use any more, until the deadline: what was sent with the request is in use by
        the Zygote and its new child until then, and the caller is about to give it back."""
        if future.cancelled():
            if self.closed or number not in self._pending:  # answered after the cancelling, before this
                return
            future = self._pending[number] = self._loop.create_future()
        try:
            close_all((await future).fds)
        except SandboxFailed:
            return

    def close(self) -> None:
        """End the wire: the Zygote sees it and exits. Waiters get ZygoteGone. Safe to call twice."""
        fd = self._sock.fileno()
        if fd < 0:
            return
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)
        self._sock.close()
        for _, fds in self._unsent:
            close_all(fds)
        self._unsent.clear()
        for future in self._pending.values():
            if not future.done():
                late = self._is_late
                future.set_exception(ZygoteLate("no answer in time") if late else ZygoteGone("the Zygote died"))

    def _give_up(self) -> None:
        self._is_late = True
        self._end()

    def _end(self) -> None:
        if not self.closed:
            self.close()
            self._on_end()

    def _push(self, data: bytes, fds: Sequence[int]) -> None:
        if self._unsent or not self._send_now(data, fds):
            # The message waits for the Zygote, so its descriptors must outlive the caller's.
            self._unsent.append((data, duplicates(fds)))
            self._loop.add_writer(self._sock.fileno(), self._writable)

    def _send_now(self, data: bytes, fds: Sequence[int]) -> bool:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            self._sock.sendmsg([data], rights)
        except BlockingIOError:
            return False
        except ConnectionError:
            pass  # the reader sees the end
        return True

    def _writable(self) -> None:
        while self._unsent:
            data, fds = self._unsent[0]
            try:
                if not self._send_now(data, fds):
                    return
            except OSError:
                self._end()
                return
            self._unsent.pop(0)
            close_all(fds)
        self._loop.remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        try:
            data, fds = linux.receive(self._sock, _buffer, protocol.CONTROL_MAX_FDS)
        except BlockingIOError:
            return
        except OSError:  # also EMSGSIZE: it is longer than any answer may be
            data, fds = b"", []
        try:
            if not data:
                raise protocol.ProtocolError("end of the wire")
            answer = Answer(protocol.decode_control(data), fds)
        except protocol.ProtocolError:
            close_all(fds)
            self._end()
            return
        self._deliver(answer)

    def _deliver(self, answer: Answer) -> None:
        future = self._pending.get(answer.message["id"])
        if future is None or future.done():
            close_all(answer.fds)  # its waiter has gone; a forked child ends when its channel closes
            self._pending.pop(answer.message["id"], None)
            self._strays += 1
            if self._strays > MOST_STRAYS:
                self._end()
        elif answer.message["op"] == "refused":
            close_all(answer.fds)
            future.set_exception(ZygoteRefused(str(answer.message.get("error"))))
        else:
            future.set_result(answer)


def duplicates(fds: Sequence[int]) -> list[int]:
    """A copy of each, close-on-exec. Raises: OSError; then there is none."""
    copies: list[int] = []
    try:
        for fd in fds:
            copies.append(os.dup(fd))
    except OSError:
        close_all(copies)
        raise
    return copies


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors that were not taken."""
    for fd in fds:
        os.close(fd)


def read_status(message: dict[str, Any]) -> int | None:
    """The wait status in an answer; None: the process's parent does not know it, or answers nonsense."""
    status = message.get("status")
    return status if isinstance(status, int) and 0 <= status <= MOST_STATUS else None


def take_pidfd(fds: list[int]) -> int:
    """The one descriptor of a `forked` answer. Raises: ZygoteGone when there is not exactly one: the Zygote lies."""
    if len(fds) == 1:
        return fds[0]
    close_all(fds)
    raise ZygoteGone("the Zygote answered without a pidfd")
