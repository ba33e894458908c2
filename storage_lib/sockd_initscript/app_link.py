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
from .no_message import NoMessage
from .region import Message, Segment

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

ANCILLARY_BYTES = socket.CMSG_SPACE(4)
EMPTY = Segment(-1, 0)
"""Where messages without bytes lie."""
SEND_TIMEOUT_S = 10.0
"""How long `send_msg` and `transfer_conn` wait for an engine that does not read."""


class TimedOut(NoMessage):
    """Nothing came in time."""


class Connection:
    """An established connection that the script made. Closing `sock` is the receiver's affair.

    kind: "tcp": the connection itself; "relay": a socket on which the engine speaks plain bytes and TLS beyond, to the
    host whose certificate it checked as `tls_server_name`."""

    __slots__ = ("addr", "kind", "sock", "tls_server_name")

    def __init__(self, sock: socket.socket, addr: str, kind: str, tls_server_name: str | None) -> None:
        self.sock = sock
        self.addr = addr
        self.kind = kind
        self.tls_server_name = tls_server_name


class Link:
    """Use `sockd_initscript.link()`; there is one in a process."""

    def __init__(self, fd: int) -> None:
        self._sock = socket.socket(fileno=fd)
        self._sock.setblocking(False)
        self._lock = _thread.allocate_lock()
        self._reading = False
        self._waiting: list[_thread.LockType] = []
        self._ended: str | None = None
        self._closed = False
        self._patient = True
        self._messages: dict[int, Message] = {}
        self._sent: dict[int, list[str]] = {}
        self._failed: dict[int, str] = {}
        self._connections: dict[int, Connection] = {}
        self._segments: dict[int, Segment] = {}

    # -- from the script

    def recv_msg(self, msg_id: int, timeout_s: float | None = None) -> Message:
        """Wait for the message `msg_id`; asked again, it is the same one.

        Raises: NoMessage, when the script failed or ended without it, when the engine is gone, or after `timeout_s`."""

        message: Message = self._wait(lambda: self._message(msg_id), timeout_s)
        _ = message.view  # mapped now: it must outlive the link
        return message

    def reply(self, msg_id: int, matches: Callable[[list[str]], bool], wait_s: float, grace_s: float) -> Message:
        """The message `msg_id`, if it is the whole reply to what the caller wants.

        Waits up to `wait_s` for a reply that is on its way. For one of which nothing was heard it waits `grace_s`, for
        the script may be about to send that RPC; but once that was in vain, not again until something new is heard.

        Args: matches: whether an RPC is the one that the caller would make. Raises: NoMessage."""

        def under_way() -> bool | None:
            rpc = self._sent.get(msg_id)
            if rpc is not None and not matches(rpc):
                raise NoMessage(f"number {msg_id} is to be another reply: {rpc}")
            # A script may number its RPCs one way and its messages another.
            return rpc is not None or any(matches(rpc) for rpc in self._unanswered()) or None

        def look() -> Message | None:
            message = self._message(msg_id)
            if message is None and not under_way():
                raise NoMessage(f"number {msg_id} went by another number")
            return message

        try:
            self._wait(lambda: self._message(msg_id) or under_way(), grace_s if self._patient else 0.0)
        except TimedOut:
            self._patient = False
            raise
        message: Message = self._wait(look, wait_s)
        if message.rpc is None or not matches(message.rpc):
            raise NoMessage(f"number {msg_id} is another reply: {message.rpc}")
        return message

    def get_conn(self, conn_id: int, timeout_s: float | None = None) -> Connection:
        """Wait for the connection `conn_id`; it is given away once. Raises: NoMessage, as `recv_msg`."""
        connection: Connection = self._wait(lambda: self._connections.pop(conn_id, None), timeout_s)
        egress.note("a connection of the script's")  # nothing tells what is sent over it
        return connection

    # -- to the script

    def send_msg(self, msg_id: int, data: bytes | memoryview) -> None:
        """Send at most wire.MAX_PAYLOAD bytes. The script may write something because of it.

        Raises: WireError when it is more; OSError when the engine is gone."""
        if len(data) > wire.MAX_PAYLOAD:
            raise wire.WireError(f"message of {len(data)} bytes, limit {wire.MAX_PAYLOAD}")
        egress.note("a message to the script")
        self._send({"op": "message", "id": msg_id}, bytes(data))

    def transfer_conn(self, conn_id: int, addr: str, sock: socket.socket) -> None:
        """Give an idle connection to the script; it is closed here. Raises: OSError; then it is still the caller's."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sock.fileno()]))]
        self._send({"op": "connection", "id": conn_id, "addr": addr}, b"", rights)
        sock.close()

    def report_read(self, rpc: list[str], served: str, start_ns: int, end_ns: int) -> None:
        """Tell the trace what was read, when (CLOCK_MONOTONIC) and from where: "region" or "network". Never waits: what
        the engine does not take at once is dropped."""
        message = {"op": "read", "rpc": rpc, "served": served, "start_ns": start_ns, "end_ns": end_ns}
        try:
            self._sock.send(wire.encode(message), socket.MSG_NOSIGNAL)
        except (OSError, wire.WireError):
            return

    def close(self) -> None:
        """End it for all who wait. What they hold already, they keep."""
        with self._lock:
            self._end("the link was closed")
            self._closed = True
            self._messages.clear()
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

    def _unanswered(self) -> Iterator[list[str]]:
        """RPCs of which neither the reply nor the failure was heard under the number that they have."""
        for number, rpc in self._sent.items():
            if number not in self._messages and number not in self._failed:
                yield rpc

    def _wait(self, look: Callable[[], Any], timeout_s: float | None) -> Any:
        """What `look` gives, called with the lock held after each thing that is heard, as soon as it is not None.

        Raises: NoMessage, when the link has ended; TimedOut; whatever `look` raises."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._lock:
                found = look()
                if found is not None:
                    return found
                if self._ended is not None:
                    raise NoMessage(self._ended)
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
        if not heard and self._ended is None:
            poller = select.poll()
            poller.register(self._sock, select.POLLIN)
            heard = bool(poller.poll(None if timeout_s < 0 else math.ceil(timeout_s * 1000)))
        while heard and self._receive():
            continue
        return heard or self._ended is not None

    def _receive(self) -> bool:
        """File one datagram, if there is one; the end of the link is none."""
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
        return self._ended is None

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
        self._patient = True

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
        filed = Message(segment, offset, length, message.get("rpc"), message["status"])
        self._messages.setdefault(message["id"], filed)

    def _on_sent(self, message: dict[str, Any], fds: array.array[int]) -> None:
        self._sent.setdefault(message["id"], message["rpc"])

    def _on_failed(self, message: dict[str, Any], fds: array.array[int]) -> None:
        self._failed.setdefault(message["id"], message["reason"])

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

    def _on_end(self, message: dict[str, Any], fds: array.array[int]) -> None:
        self._end(f"the initscript has ended: {message['outcome']} {message['status']}")

    def _end(self, reason: str) -> None:
        self._ended = self._ended or reason

    # -- sending

    def _send(self, message: dict[str, Any], payload: bytes, rights: list[Any] | None = None) -> None:
        data = wire.encode(message, payload)
        poller = select.poll()
        poller.register(self._sock, select.POLLOUT)
        deadline = time.monotonic() + SEND_TIMEOUT_S
        while True:
            try:
                self._sock.sendmsg([data], rights or [], socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise TimeoutError("the engine takes no message") from None


OPERATIONS: dict[str, Callable[[Link, dict[str, Any], array.array[int]], None]] = {
    "message": Link._on_message,
    "sent": Link._on_sent,
    "failed": Link._on_failed,
    "connection": Link._on_connection,
    "end": Link._on_end,
}
