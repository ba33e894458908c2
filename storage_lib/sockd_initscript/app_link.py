"""The app's end of the app link: reads what the engine pushes into the inbox, and waits there for what somebody asks for.

Owns the socket and the inbox. Threads may wait at the same time: one reads for all, the
others sleep until it has read something. A link that breaks its rules counts as ended; there is always the network.
"""

from __future__ import annotations

import _thread
import array
import math
import os
import select
import socket
import time

from . import egress, wire
from .inbox import Inbox
from .keys import key_of
from .no_message import NoMessage

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .connection import Connection
    from .region import Message

ANCILLARY_BYTES = socket.CMSG_SPACE(4)
NOT_ASKED = "the script has not asked for it"
SEND_TIMEOUT_S = 10.0
"""How long `send_msg` and `transfer_conn` wait for an engine that does not read."""


class TimedOut(NoMessage):
    """Nothing came in time."""


class Link:
    """Use `sockd_initscript.link()`; there is one in a process."""

    def __init__(self, fd: int, *, is_inherited: bool = False) -> None:
        """Args: is_inherited: another process ends the link: what came counts no longer than the socket lasts."""
        self._is_inherited = is_inherited
        self._sock = socket.socket(fileno=fd)
        self._sock.setblocking(False)
        self._lock = _thread.allocate_lock()
        self._reading = False
        self._waiting: list[_thread.LockType] = []
        self._gone: str | None = None
        """Why nothing will come any more."""
        self._closed = False
        self._patient = True
        self._is_hung = False
        self._inbox = Inbox()
        self.kept: dict[str, Any] = {}
        """What its users keep of what came, which ends with it."""
        self._checks: dict[int, int] = {}
        """How often the engine was asked for a check, by message."""

    # -- from the script

    def recv_msg(self, msg_id: int, timeout_s: float | None = None) -> Message:
        """Wait for the message `msg_id`; asked again, it is the same one.

        Raises: NoMessage, when the script failed or ended without it, when the engine is gone, or after `timeout_s`."""

        message: Message = self._wait(lambda: self._inbox.message(msg_id), timeout_s)
        _ = message.view  # mapped now: it must outlive the link
        return message

    def recv_file(self, msg_id: int, timeout_s: float | None = None) -> int:
        """Wait for the file `msg_id`: a descriptor, the caller's, of a file in memory that no other process has. Given away once.

        Raises: NoMessage, as `recv_msg`."""
        fd: int = self._wait(lambda: self._inbox.take_file(msg_id), timeout_s)
        return fd

    def has_heard_of(self, rpc: list[str]) -> bool:
        """Whether a reply to `rpc` is there or on its way. Does not wait."""
        self._hear()
        try:
            with self._lock:
                return bool(self._inbox.is_heard_of(key_of(rpc)))
        except NoMessage:
            return False

    def reply(self, rpc: list[str], wait_s: float, grace_s: float, *, take: bool = True) -> Message:
        """Take a whole reply to `rpc`, whatever its number; each is given to one caller. Without `take` it stays for another.

        Waits up to `wait_s` for a reply that is on its way. For one of which nothing was heard it waits `grace_s`, for the script
        may be about to send that RPC, and a tenth of it if others are under way; but once that was in vain, not again until
        something new is heard. Nor is an engine waited for that was silent for all of `wait_s`. Raises: NoMessage."""
        key = key_of(rpc)
        grace_s = grace_s if self._patient else 0.0
        try:
            try:
                self._wait(lambda: self._inbox.is_heard_of(key), grace_s / 10)
            except TimedOut:
                if self._inbox.awaits_replies:
                    raise
                self._wait(lambda: self._inbox.is_heard_of(key), grace_s * 9 / 10)
        except TimedOut:
            self._patient = False
            raise NoMessage(NOT_ASKED) from None
        message: Message = self._wait_for_engine(lambda: self._inbox.find_reply(key, take=take), wait_s)
        return message

    def is_unchanged(self, message: Message, timeout_s: float) -> bool:
        """Whether the object that `message` is a copy of is the same now, as the engine finds out. False: it is not known.

        Raises: NoMessage, when the engine is gone or silent."""
        number = message.number
        with self._lock:
            checks = self._checks[number] = self._checks.get(number, 0) + 1
        try:
            self._send({"op": "check", "id": number}, b"", timeout_s=0.0)
        except OSError as error:
            raise NoMessage(f"the engine takes no message: {error}") from None
        found = self._wait_for_engine(lambda: self._inbox.is_unchanged(number, checks), timeout_s, after_end=True)
        return bool(found)

    def get_conn(self, conn_id: int, timeout_s: float | None = None) -> Connection:
        """Wait for the connection `conn_id`; it is given away once. Raises: NoMessage, as `recv_msg`."""
        connection: Connection = self._wait(lambda: self._inbox.take_connection(conn_id), timeout_s)
        egress.note()  # nothing tells what is sent over it
        return connection

    # -- to the script

    def send_msg(self, msg_id: int, data: bytes | memoryview) -> None:
        """Send at most wire.MAX_PAYLOAD bytes. The script may write something because of it.

        Raises: WireError when it is more; OSError when the engine is gone."""
        if len(data) > wire.MAX_PAYLOAD:
            raise wire.WireError(f"message of {len(data)} bytes, limit {wire.MAX_PAYLOAD}")
        egress.note()
        self._send({"op": "message", "id": msg_id}, bytes(data))

    def transfer_conn(self, conn_id: int, addr: str, sock: socket.socket) -> None:
        """Give an idle connection to the script; it is closed here. Raises: OSError; then it is still the caller's."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sock.fileno()]))]
        self._send({"op": "connection", "id": conn_id, "addr": addr}, b"", rights)
        sock.close()

    def report_read(self, rpc: list[str], served: str, start_ns: int, end_ns: int, why: str = "") -> None:
        """Tell the trace what was read, when (CLOCK_MONOTONIC), from where ("region" or "network") and why from there. Never
        waits: what the engine does not take at once is dropped."""
        message = {"op": "read", "rpc": rpc, "served": served, "start_ns": start_ns, "end_ns": end_ns, "why": why}
        try:
            self._sock.send(wire.encode(message), socket.MSG_NOSIGNAL)
        except (OSError, wire.WireError):
            return

    def close(self) -> None:
        """End it for all who wait. What they hold already, they keep."""
        with self._lock:
            self._end("the link was closed")
            self._closed = True
            self._inbox.close()
            self.kept.clear()
            try:
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes the one who reads
            except OSError:
                pass
            if not self._reading:  # else the reader closes it: a number that is free may be another file's at once
                self._sock.close()

    # -- waiting

    def _wait_for_engine(self, look: Callable[[], Any], timeout_s: float, *, after_end: bool = False) -> Any:
        """`_wait`, which an engine that is silent for so long is not worth a second time. Raises: NoMessage."""
        try:
            return self._wait(look, 0.0 if self._is_hung else timeout_s, after_end=after_end)
        except TimedOut:
            self._is_hung = True
            raise

    def _wait(self, look: Callable[[], Any], timeout_s: float | None, *, after_end: bool = False) -> Any:
        """Call `look` now and after whatever comes, until it returns something else than None; under the lock.

        Args: after_end: for what comes also when the script has ended.
        Raises: NoMessage, when the link has ended; TimedOut; whatever `look` raises."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if self._is_inherited:
            self._hear()
        while True:
            with self._lock:
                found = look()
                if found is not None:
                    return found
                reason = (None if after_end else self._inbox.ended) or self._gone
                if reason is not None:
                    raise NoMessage(reason)
                turn = None
                if self._reading:
                    turn = _thread.allocate_lock()
                    turn.acquire()
                    self._waiting.append(turn)
                self._reading = True
            remaining = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
            if turn is None:
                heard = self._read_for_all(remaining)
            else:
                heard = turn.acquire(True, min(remaining, _thread.TIMEOUT_MAX))
            if not heard:
                raise TimedOut(f"nothing came within {timeout_s} s")

    def _hear(self) -> None:
        """Take in what has come; another thread may be doing so."""
        with self._lock:
            if self._reading or self._gone is not None:
                return
            self._reading = True
        self._read_for_all(0.0)

    def _read_for_all(self, timeout_s: float) -> bool:
        """Read what is there, or wait for something; then wake the others, one of whom goes on reading. False: timeout."""
        try:
            return self._read(timeout_s)
        finally:
            with self._lock:
                self._reading = False
                waiting, self._waiting = self._waiting, []
                if self._closed:
                    self._sock.close()
            for turn in waiting:
                turn.release()

    def _read(self, timeout_s: float) -> bool:
        heard = self._receive()
        if not heard and self._gone is None:
            poller = select.poll()
            poller.register(self._sock, select.POLLIN)
            heard = bool(poller.poll(None if timeout_s < 0 else math.ceil(timeout_s * 1000)))
        while heard and self._receive():
            continue
        return heard or self._gone is not None

    def _receive(self) -> bool:
        """File one datagram, if there is one; the end of the link is none. False: nothing follows it now."""
        try:
            data, ancillary, flags, _ = self._sock.recvmsg(wire.MAX_DATAGRAM, ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except ConnectionResetError:  # the engine closed without reading all (unix(7)); what it sent is there still
            return self._receive()
        except OSError as error:
            data, ancillary, flags = b"", [], 0
            reason = f"the link to the engine: {error.strerror}"
        else:
            reason = "the engine is gone"
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) // 4 * 4])
        with self._lock:
            if not data:
                self._end(reason)
                return False
            try:
                self._file(data, flags, fds)
            except (wire.WireError, OSError) as error:
                self._end(f"the engine broke the link: {error}")
            finally:
                for fd in fds:
                    os.close(fd)
        return self._gone is None

    def _file(self, data: bytes, flags: int, fds: array.array[int]) -> None:
        """Take in one datagram; a descriptor that is kept is taken out of `fds`."""
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or self._closed:
            raise wire.WireError("a datagram was cut, or is not wanted")
        self._inbox.file(data, fds)
        self._patient, self._is_hung = True, False

    def _end(self, reason: str) -> None:
        self._gone = self._gone or reason
        if self._is_inherited:
            self._inbox.forget()

    # -- sending

    def _send(
        self,
        message: dict[str, Any],
        payload: bytes,
        rights: list[Any] | None = None,
        timeout_s: float = SEND_TIMEOUT_S,
    ) -> None:
        data = wire.encode(message, payload)
        poller = select.poll()
        poller.register(self._sock, select.POLLOUT)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._sock.sendmsg([data], rights or [], socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise TimeoutError("the engine takes no message") from None
