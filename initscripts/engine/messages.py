"""A run's messages: slices of the region to the app, and what the app sends for the guest to receive.

Owns: sockets of the app that no guest has asked for yet. To send is to name a slice: nothing is copied, and a segment's fd
goes with the first message in it. A file goes with its own message, and is the app's then.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from typing import Any

from sockd_initscripts.engine.app_link import AppLink
from sockd_initscripts.engine.signals import Signal, Waiting
from sockd_initscripts.errors import CallFailed
from sockd_initscripts.limits import Budget
from sockd_initscripts.region import Buffer
from sockd_initscripts.report import UNSIGNED, MessageRecord
from sockd_storage_lib.sockd_initscript.wire import WireError

INBOX_MESSAGES = 64
"""From the app, that the guest has not received; one more breaks the protocol."""
INBOX_CONNECTIONS = 16
HEADERS_LIMIT = 8 * 1024
"""Characters of a reply's headers that are passed on to the app."""


class Outbox:
    """To the app; the guest's thread."""

    def __init__(self, budget: Budget, link: AppLink) -> None:
        self._budget = budget
        self._link = link
        self._sent: dict[int, MessageRecord] = {}
        self.versions: dict[int, tuple[list[str], str]] = {}
        """The RPC's descriptor and the ETag, by message: of each that is a whole reply with an ETag."""

    def send(
        self,
        number: int,
        buffer: Buffer | None,
        offset: int,
        length: int,
        descriptor: list[str] | None,
        status: int,
        etag: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Push these bytes of a buffer (None is an empty one). Raises CallFailed: EEXIST, EDQUOT, EPIPE, EMSGSIZE."""
        number = self._unused(number)
        message: dict[str, Any] = {"op": "message", "id": number, "rpc": descriptor, "status": status}
        fd = None
        if buffer is None or length == 0:
            message.update(segment=-1, offset=0, length=0)
        else:
            segment = buffer.segment
            message.update(segment=segment.index, offset=buffer.offset + offset, length=length)
            if (fd := segment.take_fd()) is not None:
                message["size"] = segment.size
        if descriptor is not None and headers and sum(map(len, headers.values())) < HEADERS_LIMIT:
            message["headers"] = headers
        if descriptor is not None and etag:
            self.versions[number] = descriptor, etag
        self._push(message, fd)

    def send_file(
        self, number: int, take: Callable[[], int], length: int, status: int, headers: dict[str, str] | None
    ) -> None:
        """Push a file that is the app's from now on. Args: take: gives its fd. Raises: CallFailed, as `send` and `take`."""
        number = self._unused(number)
        message: dict[str, Any] = {"op": "file", "id": number, "status": status, "length": length}
        if headers and sum(map(len, headers.values())) < HEADERS_LIMIT:
            message["headers"] = headers
        self._push(message, take())

    def _unused(self, number: int) -> int:
        number &= UNSIGNED
        if number in self._sent:
            raise CallFailed(errno.EEXIST)
        if len(self._sent) >= self._budget.messages:
            raise CallFailed(errno.EDQUOT)
        return number

    def _push(self, message: dict[str, Any], fd: int | None) -> None:
        try:
            reached = self._link.send(message, fd)
        except WireError:
            raise CallFailed(errno.EMSGSIZE) from None
        if not reached:
            raise CallFailed(errno.EPIPE)
        number = message["id"]
        self._sent[number] = MessageRecord(number, time.monotonic_ns(), message["length"])

    def records(self) -> list[MessageRecord]:
        """For the report."""
        return list(self._sent.values())


class Inbox:
    """From the app: put in by the loop, taken by the guest's thread."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._messages: dict[int, bytes] = {}
        self._connections: dict[int, tuple[socket.socket, str]] = {}
        self._wanted: dict[tuple[str, int], Signal] = {}
        self._is_app_gone = False

    def put_message(self, number: int, payload: bytes) -> None:
        """Raises WireError when the guest has too many to receive, or this one already."""
        if number in self._messages or len(self._messages) >= INBOX_MESSAGES:
            raise WireError(f"message {number} of the app is one too many")
        self._messages[number] = payload
        self._wake("message", number)

    def put_connection(self, number: int, sock: socket.socket, address: str) -> None:
        """The socket is ours if this does not raise WireError."""
        if number in self._connections or len(self._connections) >= INBOX_CONNECTIONS:
            raise WireError(f"connection {number} of the app is one too many")
        self._connections[number] = (sock, address)
        self._wake("connection", number)

    def take_message(self, number: int) -> bytes:
        """Wait for it. Raises CallFailed: EPIPE when the app has gone, ECANCELED."""
        number &= UNSIGNED
        self._wait("message", number, self._messages)
        return self._messages.pop(number)

    def take_connection(self, number: int) -> tuple[socket.socket, str]:
        """Wait for it; the socket is the caller's. Raises CallFailed: EPIPE when the app has gone, ECANCELED."""
        number &= UNSIGNED
        self._wait("connection", number, self._connections)
        return self._connections.pop(number)

    def app_gone(self) -> None:
        """On the loop: nothing more will come."""
        self._is_app_gone = True

    def close(self) -> None:
        """Once the guest has ended."""
        for sock, _ in self._connections.values():
            sock.close()
        self._connections.clear()

    def _wait(self, kind: str, number: int, arrived: dict[int, bytes] | dict[int, tuple[socket.socket, str]]) -> None:
        signal = self._wanted[kind, number] = Signal()
        if number not in arrived:
            self._waiting.wait_for(signal)
        del self._wanted[kind, number]
        if number not in arrived:
            raise CallFailed(errno.EPIPE if self._is_app_gone else errno.ECANCELED)

    def _wake(self, kind: str, number: int) -> None:
        if (signal := self._wanted.get((kind, number))) is not None:
            signal.set()
