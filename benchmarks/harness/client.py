"""A keep-alive HTTP/1.1 client with little cost of its own: a raw socket, requests formatted beforehand, one read per answer.

It understands what the worker and its peer send (Content-Length, no chunks). Anything else is an error, loudly.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

READ_BYTES = 1 << 16


class BadAnswer(Exception):
    """The server's answer was not 200, or not HTTP as this client speaks it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer and the time it took, from the first byte written to the last byte read."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    ms: float
    sent: bytes = b""
    """Its request."""

    @property
    def cold(self) -> bool:
        return self.headers["x-sockd-cold"] not in ("0", "false")

    @property
    def last(self) -> bool:
        """Whether the server closes the connection behind it."""
        return self.headers.get("connection", "").lower() == "close"

    def phases_ms(self) -> dict[str, float]:
        """The phases of `Server-Timing`, in ms."""
        parts = (part.strip().partition(";dur=") for part in self.headers["server-timing"].split(","))
        return {name: float(duration) for name, _, duration in parts}


def request(function: str, body: bytes = b"{}", host: str = "localhost") -> bytes:
    """The bytes of `POST /run/<function>`."""
    lines = (
        f"POST /run/{function} HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


class AnswerParser:
    """Collects the bytes of one answer at a time."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> tuple[int, dict[str, str], bytes] | None:
        """(status, headers, body) when the answer is complete. Raises BadAnswer at the end of the stream."""
        if not data:
            raise BadAnswer(f"the server closed the connection after {len(self._buffer)} bytes")
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines[1:])
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        if "content-length" not in headers:
            raise BadAnswer(f"an answer without Content-Length: {lines[0]}")
        complete = end + 4 + int(headers["content-length"])
        if len(self._buffer) < complete:
            return None
        body = bytes(self._buffer[end + 4 : complete])
        del self._buffer[:complete]
        return int(lines[0].split()[1]), headers, body


class Client:
    """One connection."""

    def __init__(self, host: str, port: int, *, timeout_s: float = 60.0) -> None:
        self._address = (host, port)
        self._timeout_s = timeout_s
        self._parser = AnswerParser()
        self._connect()

    def _connect(self) -> None:
        self.socket = socket.create_connection(self._address, self._timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def reconnect(self) -> None:
        """For the next request, when an answer was the connection's last. Another descriptor, perhaps."""
        self.socket.close()
        self._connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Write a request; `receive` gives its answer."""
        self._sent = data
        self._begun = time.perf_counter()
        self.socket.sendall(data)

    def receive(self) -> Answer | None:
        """Read once; the answer if that completed it. Raises BadAnswer."""
        data = self.socket.recv(READ_BYTES)
        ended = time.perf_counter()  # before parsing, which takes 70 us where nothing has been done for a while
        complete = self._parser.feed(data)
        if complete is None:
            return None
        return Answer(*complete, ms=(ended - self._begun) * 1000, sent=self._sent)

    def exchange(self, data: bytes) -> Answer:
        """One request and its answer. Raises BadAnswer unless the status is 200."""
        self.send(data)
        while (answer := self.receive()) is None:
            pass
        return checked(answer)

    def invoke(self, function: str, body: bytes = b"{}") -> Answer:
        """Invoke a function. Raises BadAnswer unless it answered 200."""
        return self.exchange(request(function, body))


def checked(answer: Answer, status: int = 200) -> Answer:
    """The answer. Raises BadAnswer, with the body, unless it has this status."""
    if answer.status != status:
        raise BadAnswer(f"status {answer.status}: {answer.body[:500].decode(errors='replace')}")
    return answer


def closed_loop(
    host: str, port: int, concurrency: int, requests: Iterable[bytes], *, status: int = 200
) -> Iterator[Answer]:
    """Answers to all requests, over `concurrency` connections that each send the next request when they have an answer.

    Raises BadAnswer at the first answer that has another status."""
    waiting = iter(requests)
    clients = [Client(host, port) for _ in range(concurrency)]
    by_fd = {client.socket.fileno(): client for client in clients}
    poll = select.epoll()
    in_flight = 0
    try:
        for client, first in zip(clients, waiting, strict=False):
            poll.register(client.socket.fileno(), select.EPOLLIN)
            client.send(first)
            in_flight += 1
        while in_flight:
            for fd, _ in poll.poll():
                client = by_fd[fd]
                if (answer := client.receive()) is None:
                    continue
                if answer.last:
                    poll.unregister(fd)
                    del by_fd[fd]
                    client.reconnect()
                    by_fd[client.socket.fileno()] = client
                    poll.register(client.socket.fileno(), select.EPOLLIN)
                if (data := next(waiting, None)) is None:
                    in_flight -= 1
                else:
                    client.send(data)
                yield checked(answer, status)
    finally:
        poll.close()
        for client in clients:
            client.socket.close()
