"""A worker's kept connection to one cache node, and the pool of them. Sockets do not block; `L2Client` polls them.

A connection has one request under way. A client that has enough stripes gives the connection back before the answer has arrived;
the rest of the answer is then read when the connection is next taken, without waiting for it.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import threading
import time
from collections import deque

from sockd.images.caches.node_http import END_OF_HEAD, MAX_HEAD_BYTES, Answer, BadHead, parse_answer

MOST_CONNECTIONS = 32
"""To one node; a request beyond these counts as unanswered."""
LATE_S = 5.0
"""A connection is closed whose answer is later than this."""
FIRST_RETRY_S = 0.5
LAST_RETRY_S = 10.0
"""How long a node is left alone after a failed connection: first, and at most."""
MOST_ACCUSATIONS = 3
DISTRUST_S = 60.0
"""How long a node is left alone after this many wrong stripes."""
_RECEIVE_BUFFER_BYTES = 512 << 10


class NodeConnection:
    """One socket. After any OSError or BadHead it can only be closed."""

    def __init__(self, connected: socket.socket, max_body_bytes: int) -> None:
        self._socket = connected
        self._unsent: list[memoryview] = []
        self._buffer = bytearray(MAX_HEAD_BYTES + max_body_bytes)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._answer: Answer | None = None
        self._body_start = 0
        self.begun = 0.0
        """When the request under way began."""
        self.is_under_way = False

    @classmethod
    def connect(cls, host: str, port: int, max_body_bytes: int) -> NodeConnection:
        """Begin to connect; the request waits for it. Raises: OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
            code = made.connect_ex((host, port))
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, f"connect to {host}:{port}")
        except BaseException:
            made.close()
            raise
        return cls(made, max_body_bytes)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_sending(self) -> bool:
        """Whether a part of the request is not sent."""
        return bool(self._unsent)

    @property
    def events(self) -> int:
        """What to poll for."""
        return select.POLLIN | (select.POLLOUT if self._unsent else 0)

    def begin(self, *request: bytes) -> None:
        """Send a request, as far as the socket takes it now; `advance` sends the rest. Raises: OSError."""
        self._unsent = [memoryview(part) for part in request]
        self._filled = 0
        self._answer = None
        self.begun = time.monotonic()
        self.is_under_way = True
        self._send()

    def advance(self) -> bool:
        """Send and receive what is possible without waiting; whether the answer is complete. Raises: OSError, BadHead."""
        if self._unsent:
            self._send()
        while not self._filled or not self._is_complete():
            try:
                received = self._socket.recv_into(self._view[self._filled :])
            except BlockingIOError:
                return False
            if not received:
                raise ConnectionResetError("the node closed the connection")
            self._filled += received
        self.is_under_way = False
        return True

    @property
    def status(self) -> int:
        """The status of the complete answer."""
        assert self._answer is not None
        return self._answer.status

    @property
    def body(self) -> memoryview:
        """The body of the complete answer, valid until the next request."""
        return self._view[self._body_start : self._filled]

    @property
    def may_be_kept(self) -> bool:
        """Whether the node takes another request after the complete answer."""
        return self._answer is not None and not self._answer.closes

    def close(self) -> None:
        self._socket.close()

    def _is_complete(self) -> bool:
        if self._answer is None:
            end = self._buffer.find(END_OF_HEAD, 0, min(self._filled, MAX_HEAD_BYTES))
            if end < 0:
                if self._filled >= MAX_HEAD_BYTES:
                    raise BadHead(431, "a long head")
                return False
            self._answer = parse_answer(bytes(self._view[:end]))
            self._body_start = end + len(END_OF_HEAD)
            if self._body_start + self._answer.body_bytes > len(self._buffer):
                raise BadHead(413, "a long answer")
        excess = self._filled - self._body_start - self._answer.body_bytes
        if excess > 0:
            raise BadHead(400, "more than the answer")
        return excess == 0

    def _send(self) -> None:
        while self._unsent:
            try:
                sent = self._socket.sendmsg(self._unsent)
            except BlockingIOError:  # also before the connection is established
                return
            while self._unsent and sent >= len(self._unsent[0]):
                sent -= len(self._unsent.pop(0))
            if sent:
                self._unsent[0] = self._unsent[0][sent:]


class NodePool:
    """The connections to one node. Threads share it."""

    def __init__(self, node: str, host: str, port: int, max_body_bytes: int) -> None:
        self.node = node
        self._host, self._port = host, port
        self._max_body_bytes = max_body_bytes
        self._lock = threading.Lock()
        self._kept: deque[NodeConnection] = deque()
        self._open = 0
        self._retry_s = 0.0
        self._down_until = 0.0
        self._accusations = 0
        self._answered = 0.0
        """When the node answered last."""
        self._is_closed = False

    @property
    def is_down(self) -> bool:
        """Whether the node is left alone now."""
        return time.monotonic() < self._down_until

    def take(self) -> NodeConnection | None:
        """A connection without a request under way; None: the node is down or gone, or all its connections wait for answers."""
        with self._lock:
            if self.is_down or self._is_closed:
                return None
            late = []
            taken = None
            while self._kept and taken is None:
                connection = self._kept.pop()
                if self._has_arrived(connection):
                    taken = connection
                elif connection.fileno() >= 0:
                    late.append(connection)
            self._kept.extendleft(late)
            if taken is None and self._open < MOST_CONNECTIONS:
                taken = self._connect()
            return taken

    def give_back(self, connection: NodeConnection) -> None:
        """Keep a connection; its answer may be under way."""
        with self._lock:
            if not self._is_closed and (connection.is_under_way or connection.may_be_kept):
                self._kept.append(connection)
            else:
                self._drop(connection)

    def was_silent(self, since: float) -> None:
        """A read has waited for the node until its deadline: leave the node alone, if it has answered no other one meanwhile.

        Args: since: when the request began."""
        with self._lock:
            if self._answered < since and not self.is_down:
                self._leave_alone()

    def succeeded(self) -> None:
        """The node has answered."""
        self._retry_s = 0.0
        self._answered = time.monotonic()

    def failed(self, connection: NodeConnection) -> None:
        """A connection broke: close it and the idle ones, which a restarted node has lost, too; leave the node alone."""
        with self._lock:
            self._drop(connection)
            while self._kept:
                self._drop(self._kept.pop())
            self._leave_alone()

    def accuse(self) -> None:
        """The node sent a wrong stripe. It is left alone if it repeats this."""
        with self._lock:
            self._accusations += 1
            if self._accusations == MOST_ACCUSATIONS:
                self._accusations = 0
                self._down_until = time.monotonic() + DISTRUST_S

    def close_one(self, connection: NodeConnection) -> None:
        """Close a connection that cannot be kept."""
        with self._lock:
            self._drop(connection)

    def close(self) -> None:
        """Close the kept connections, and those that are given back from now on: the node is not used any more."""
        with self._lock:
            self._is_closed = True
            while self._kept:
                self._drop(self._kept.pop())

    def _has_arrived(self, connection: NodeConnection) -> bool:
        """Whether a kept connection is free. One that broke, or is late, is closed."""
        if not connection.is_under_way:
            return True
        try:
            if connection.advance():
                if connection.may_be_kept:
                    return True
            elif time.monotonic() - connection.begun < LATE_S:
                return False
            else:
                self._leave_alone()
        except (OSError, BadHead):
            pass
        self._drop(connection)
        return False

    def _connect(self) -> NodeConnection | None:
        try:
            connection = NodeConnection.connect(self._host, self._port, self._max_body_bytes)
        except OSError:
            self._leave_alone()
            return None
        self._open += 1
        return connection

    def _drop(self, connection: NodeConnection) -> None:
        with contextlib.suppress(OSError):
            connection.close()
        self._open -= 1

    def _leave_alone(self) -> None:
        self._retry_s = min(max(FIRST_RETRY_S, 2 * self._retry_s), LAST_RETRY_S)
        self._down_until = time.monotonic() + self._retry_s
