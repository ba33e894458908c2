"""The app's end of the app link: reads what the engine pushes and keeps it until somebody asks.

Owns the socket, the segments' descriptors and the messages. Threads may wait at the same time: one reads for all, the
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
from .connection import Connection
from .keys import key_of
from .no_message import NoMessage
from .region import Message, Segment

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .keys import Key

ANCILLARY_BYTES = socket.CMSG_SPACE(4)
EMPTY = Segment(-1, 0)
"""Where messages without bytes lie."""
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
        self._ended: str | None = None
        """Why no message will come any more."""
        self._gone: str | None = None
        """Why nothing at all will."""
        self._closed = False
        self._patient = True
        self._is_hung = False
        self._messages: dict[int, Message] = {}
        self._replies: dict[Key, list[Message]] = {}
        """Replies that nobody has taken, in the order in which they came."""
        self._due: dict[Key, int] = {}
        """RPCs whose replies or failures have not been heard."""
        self._failed: dict[int, str] = {}
        self._failures: dict[Key, str] = {}
        self._checked: dict[int, bool] = {}
        self._connections: dict[int, Connection] = {}
        self._segments: dict[int, Segment] = {}

    # -- from the script

    def recv_msg(self, msg_id: int, timeout_s: float | None = None) -> Message:
        """Wait for the message `msg_id`; asked again, it is the same one.

        Raises: NoMessage, when the script failed or ended without it, when the engine is gone, or after `timeout_s`."""

        message: Message = self._wait(lambda: self._message(msg_id), timeout_s)
        _ = message.view  # mapped now: it must outlive the link
        return message

    def reply(self, rpc: list[str], wait_s: float, grace_s: float) -> Message:
        """Take a whole reply to `rpc`, whatever its number; each is given to one caller.

        Waits up to `wait_s` for a reply that is on its way. For one of which nothing was heard it waits `grace_s`, for the script
        may be about to send that RPC, and a tenth of it if others are under way; but once that was in vain, not again until
        something new is heard. Nor is an engine waited for that was silent for all of `wait_s`. Raises: NoMessage."""
        key = key_of(rpc)

        def is_heard_of() -> bool | None:
            if self._replies.get(key) or self._due.get(key, 0) > 0:
                return True
            if key in self._failures:
                raise NoMessage(self._failures[key])
            return None

        def look() -> Message | None:
            waiting = self._replies.get(key)
            if waiting:
                return waiting.pop(0)
            if self._due.get(key, 0) <= 0:
                raise NoMessage(self._failures.get(key, "another read took the reply"))
            return None

        grace_s = grace_s if self._patient else 0.0
        try:
            try:
                self._wait(is_heard_of, grace_s / 10)
            except TimedOut:
                if any(due > 0 for due in self._due.values()):
                    raise
                self._wait(is_heard_of, grace_s * 9 / 10)
        except TimedOut:
            self._patient = False
            raise NoMessage(NOT_ASKED) from None
        message: Message = self._wait_for_engine(look, wait_s)
        return message

    def is_unchanged(self, message: Message, timeout_s: float) -> bool:
        """Whether the object that `message` is a copy of is the same now, as the engine finds out. False: nobody knows.

        Raises: NoMessage, when the engine is gone or silent."""
        try:
            self._send({"op": "check", "id": message.number}, b"", timeout_s=0.0)
        except OSError as error:
            raise NoMessage(f"the engine takes no message: {error}") from None
        found = self._wait_for_engine(lambda: self._checked.get(message.number), timeout_s, after_end=True)
        return bool(found)

    def get_conn(self, conn_id: int, timeout_s: float | None = None) -> Connection:
        """Wait for the connection `conn_id`; it is given away once. Raises: NoMessage, as `recv_msg`."""
        connection: Connection = self._wait(lambda: self._connections.pop(conn_id, None), timeout_s)
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
            self._forget()
            for segment in self._segments.values():
                segment.close()
            self._segments.clear()
            for connection in self._connections.values():
                connection.sock.close()
            self._connections.clear()
            try:
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes the one who reads
            except OSError:
                pass
            if not self._reading:  # else the reader closes it: a number that is free may be another file's at once
                self._sock.close()

    # -- waiting

    def _message(self, msg_id: int) -> Message | None:
        message = self._messages.get(msg_id)
        if message is None and msg_id in self._failed:
            raise NoMessage(self._failed[msg_id])
        return message

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
                reason = self._gone if after_end else self._ended
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
            raise wire.WireError("a datagram was cut, or nobody wants it")
        message, _ = wire.decode(data)
        operation = OPERATIONS.get(message["op"])
        if operation is None:
            raise wire.WireError(f"{message['op']} is not for us")
        operation(self, message, fds)
        if fds:
            raise wire.WireError(f"{message['op']} with a descriptor that nobody takes")
        self._patient, self._is_hung = True, False

    def _on_message(self, message: dict[str, Any], fds: array.array[int]) -> None:
        wire.require(message, wire.REGION_FIELDS)
        number, offset, length = message["segment"], message["offset"], message["length"]
        segment = EMPTY if length == 0 else self._segments.get(number)
        if segment is None:
            wire.require(message, {"size": int})
            if not fds:
                raise wire.WireError(f"segment {number} without its descriptor")
            if os.fstat(fds[0]).st_size < message["size"]:  # reading behind the end of a mapped file is a SIGBUS
                raise wire.WireError(f"segment {number} is shorter than {message['size']} bytes")
            segment = self._segments[number] = Segment(fds.pop(), message["size"])
        if length and not 0 <= offset < offset + length <= segment.size:
            raise wire.WireError(f"{length} bytes at {offset} of segment {number}, which has {segment.size}")
        number, rpc = message["id"], message.get("rpc")
        filed = Message(segment, offset, length, number, rpc, message["status"])
        if self._messages.setdefault(number, filed) is filed and rpc is not None:
            key = key_of(rpc)
            self._replies.setdefault(key, []).append(filed)
            self._due[key] = self._due.get(key, 0) - 1

    def _on_sent(self, message: dict[str, Any], fds: array.array[int]) -> None:
        key = key_of(message["rpc"])
        self._due[key] = self._due.get(key, 0) + 1

    def _on_failed(self, message: dict[str, Any], fds: array.array[int]) -> None:
        if message["id"] not in self._failed:
            key, reason = key_of(message["rpc"]), message["reason"]
            self._failed[message["id"]] = self._failures[key] = reason
            self._due[key] = self._due.get(key, 0) - 1

    def _on_connection(self, message: dict[str, Any], fds: array.array[int]) -> None:
        wire.require(message, {"kind": str})
        if not fds:
            raise wire.WireError("connection without its descriptor")
        sock = socket.socket(fileno=fds[0])
        fds.pop()
        old = self._connections.pop(message["id"], None)
        if old is not None:
            old.sock.close()
        self._connections[message["id"]] = Connection(
            sock, message["addr"], message["kind"], message.get("tls_server_name")
        )

    def _end(self, reason: str) -> None:
        self._gone = self._gone or reason
        self._ended = self._ended or reason
        if self._is_inherited:
            self._forget()

    def _forget(self) -> None:
        """Drop what came; memory that was handed out stays."""
        self._messages.clear()
        self._replies.clear()

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


def _on_checked(link: Link, message: dict[str, Any], fds: array.array[int]) -> None:
    """Take the answer to `is_unchanged`."""
    link._checked[message["id"]] = message["same"]


def _on_end(link: Link, message: dict[str, Any], fds: array.array[int]) -> None:
    """Note how the initscript has ended."""
    link._ended = link._ended or f"the initscript has ended: {message['outcome']} {message['status']}"


OPERATIONS: dict[str, Callable[[Link, dict[str, Any], array.array[int]], None]] = {
    "message": Link._on_message,
    "sent": Link._on_sent,
    "failed": Link._on_failed,
    "checked": _on_checked,
    "connection": Link._on_connection,
    "end": _on_end,
}
