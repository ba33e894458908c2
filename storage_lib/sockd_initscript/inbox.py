"""The inbox of the app link: it keeps messages, replies and connections of the initscript until the function reads them.

A reply is found by its RPC. Of an RPC without a reply the inbox knows whether it was sent or has failed. Owns the descriptors of
segments, and those of connections and files until the function takes them. It reads no socket and takes no lock: the link calls
it under the link's lock.
"""

from __future__ import annotations

import os
import socket

from . import wire
from .connection import Connection
from .keys import key_of
from .no_message import NoMessage
from .region import Message, Segment

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    import array
    from collections.abc import Callable
    from typing import Any

    from .keys import Key

EMPTY = Segment(-1, 0)
"""Where messages without bytes lie."""


class Inbox:
    """`file` each datagram; the rest looks at what was filed, and never waits."""

    def __init__(self) -> None:
        self.ended: str | None = None
        """Why the script sends nothing more, once it has ended."""
        self._checked: dict[int, list[bool]] = {}
        """Whether the objects of messages were the same each time that the engine checked them."""
        self._messages: dict[int, Message] = {}
        self._replies: dict[Key, list[Message]] = {}
        """Replies that were not taken, in the order in which they came."""
        self._due: dict[Key, int] = {}
        """RPCs whose replies or failures have not been heard."""
        self._failed: dict[int, str] = {}
        self._failures: dict[Key, str] = {}
        self._connections: dict[int, Connection] = {}
        self._files: dict[int, int] = {}
        self.segments: dict[int, Segment] = {}

    def file(self, data: bytes, fds: array.array[int]) -> None:
        """Take in one datagram; a descriptor that is kept is taken out of `fds`. Raises: WireError, OSError."""
        message, _ = wire.decode(data)
        operation = OPERATIONS.get(message["op"])
        if operation is None:
            raise wire.WireError(f"{message['op']} is not for us")
        operation(self, message, fds)
        if fds:
            raise wire.WireError(f"{message['op']} with a descriptor that is not expected")

    # -- looked at

    @property
    def awaits_replies(self) -> bool:
        """Whether the script has sent an RPC whose reply is on its way."""
        return any(due > 0 for due in self._due.values())

    def message(self, msg_id: int) -> Message | None:
        """Find a message; None: it may still come. Raises: NoMessage."""
        message = self._messages.get(msg_id)
        if message is None and msg_id in self._failed:
            raise NoMessage(self._failed[msg_id])
        return message

    def is_heard_of(self, key: Key) -> bool | None:
        """True: a reply to this RPC is there or on its way; None: the script may still ask. Raises: NoMessage: it has failed."""
        if self._replies.get(key) or self._due.get(key, 0) > 0:
            return True
        if key in self._failures:
            raise NoMessage(self._failures[key])
        return None

    def find_reply(self, key: Key, *, take: bool) -> Message | None:
        """Find the first reply to this RPC; None: it is on its way. Args: take: it is not found again. Raises: NoMessage."""
        waiting = self._replies.get(key)
        if waiting:
            return waiting.pop(0) if take else waiting[0]
        if self._due.get(key, 0) <= 0:
            raise NoMessage(self._failures.get(key, "another read took the reply"))
        return None

    def is_unchanged(self, msg_id: int, checks: int) -> bool | None:
        """Whether the object of a message was the same in all checks; None: so many have not been answered.

        Answers come in any order, but among so many is one to the last of these checks, or to a later one."""
        answers = self._checked.get(msg_id, [])
        return all(answers) if len(answers) >= checks else None

    def take_connection(self, conn_id: int) -> Connection | None:
        """Take a connection, which is the caller's then."""
        return self._connections.pop(conn_id, None)

    def take_file(self, msg_id: int) -> int | None:
        """Take a file's descriptor, which is the caller's then."""
        return self._files.pop(msg_id, None)

    # -- given up

    def forget(self) -> None:
        """Drop what came; memory that was handed out stays."""
        self._messages.clear()
        self._replies.clear()

    def close(self) -> None:
        """Drop everything, and close what was not taken."""
        self.forget()
        for segment in self.segments.values():
            segment.close()
        self.segments.clear()
        for connection in self._connections.values():
            connection.sock.close()
        self._connections.clear()
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

    # -- filed

    def _file_message(self, message: dict[str, Any], fds: array.array[int]) -> None:
        wire.require(message, wire.REGION_FIELDS)
        number, offset, length = message["segment"], message["offset"], message["length"]
        segment = EMPTY if length == 0 else self.segments.get(number)
        if segment is None:
            wire.require(message, {"size": int})
            if not fds:
                raise wire.WireError(f"segment {number} without its descriptor")
            if os.fstat(fds[0]).st_size < message["size"]:  # reading behind the end of a mapped file is a SIGBUS
                raise wire.WireError(f"segment {number} is shorter than {message['size']} bytes")
            segment = self.segments[number] = Segment(fds.pop(), message["size"])
        if length and not 0 <= offset < offset + length <= segment.size:
            raise wire.WireError(f"{length} bytes at {offset} of segment {number}, which has {segment.size}")
        number, rpc = message["id"], message.get("rpc")
        filed = Message(segment, offset, length, number, rpc, message["status"], message.get("headers"))
        if self._messages.setdefault(number, filed) is filed and rpc is not None:
            key = key_of(rpc)
            self._replies.setdefault(key, []).append(filed)
            self._due[key] = self._due.get(key, 0) - 1

    def _file_sent(self, message: dict[str, Any], fds: array.array[int]) -> None:
        key = key_of(message["rpc"])
        self._due[key] = self._due.get(key, 0) + 1

    def _file_failed(self, message: dict[str, Any], fds: array.array[int]) -> None:
        if message["id"] not in self._failed:
            key, reason = key_of(message["rpc"]), message["reason"]
            self._failed[message["id"]] = self._failures[key] = reason
            self._due[key] = self._due.get(key, 0) - 1

    def _file_checked(self, message: dict[str, Any], fds: array.array[int]) -> None:
        self._checked.setdefault(message["id"], []).append(message["same"])

    def _file_connection(self, message: dict[str, Any], fds: array.array[int]) -> None:
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

    def _file_file(self, message: dict[str, Any], fds: array.array[int]) -> None:
        if not fds:
            raise wire.WireError("file without its descriptor")
        if message["id"] not in self._files:
            self._files[message["id"]] = fds.pop()

    def _file_end(self, message: dict[str, Any], fds: array.array[int]) -> None:
        self.ended = self.ended or f"the initscript has ended: {message['outcome']} {message['status']}"


OPERATIONS: dict[str, Callable[[Inbox, dict[str, Any], array.array[int]], None]] = {
    "message": Inbox._file_message,
    "sent": Inbox._file_sent,
    "file": Inbox._file_file,
    "failed": Inbox._file_failed,
    "checked": Inbox._file_checked,
    "connection": Inbox._file_connection,
    "end": Inbox._file_end,
}
