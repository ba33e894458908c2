"""The other workers of the group, as this one asks them: signed requests to their public ports, bounded in time and number.

Owns the connection of each answer, until the answer is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

import httptools

from sockd.base.errors import NoCapacity, SockdError
from sockd.http.management.peer_api import PREFIX
from sockd.http.management.peer_key import HEADER, PeerKey
from sockd.http.server.listening.sockets import parse_listen

ANSWER_S = 5.0
"""How long another worker may take to begin an answer, and between two parts of one that ends."""
MOST_AT_ONCE = 64
"""Requests to other workers that are under way at once."""
_READ_BYTES = 64 * 1024
_LOST_S = 15
"""After so long without a sign of life the connection of an answer without an end is lost."""


class WorkerSilent(NoCapacity):
    """Another worker of the group does not answer in time."""

    status = 504
    error_type = "WorkerSilent"


class NoSuchWorker(SockdError):
    """The group has no live worker of this name."""

    status = 404
    error_type = "ResourceNotFoundException"


class PeerAnswer:
    """The answer of another worker, from its head on. Close it."""

    def __init__(self, worker: str, writer: asyncio.StreamWriter, reader: asyncio.StreamReader) -> None:
        self._worker = worker
        self._writer = writer
        self._reader = reader
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._is_headed = self._is_whole = False
        self.fields: dict[str, str] = {}
        """Its headers, by name in lower case."""

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._is_headed = True

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        self._is_whole = True

    # What callers use.

    @property
    def status(self) -> int:
        return int(self._parser.get_status_code())

    @property
    def is_endless(self) -> bool:
        """Whether it comes in parts, for as long as there is something to say."""
        return "content-length" not in self.fields

    async def head(self) -> None:
        """Wait until status and headers are there. Raises: WorkerSilent."""
        while not self._is_headed:
            await self._feed(ANSWER_S)

    async def parts(self) -> AsyncGenerator[bytes]:
        """Return the body in parts as they come, and close. Raises: WorkerSilent."""
        try:
            while self._parts or not self._is_whole:
                if not self._parts:
                    await self._feed(None if self.is_endless else ANSWER_S)
                parts, self._parts = self._parts, []
                for part in parts:
                    yield part
        finally:
            self.close()

    async def body(self) -> bytes:
        """Return the whole body, and close. Raises: WorkerSilent."""
        return b"".join([part async for part in self.parts()])

    def close(self) -> None:
        """End the connection. Safe to call twice."""
        self._writer.transport.abort()

    async def _feed(self, within_s: float | None) -> None:
        try:
            async with asyncio.timeout(within_s):
                data = await self._reader.read(_READ_BYTES)
            if not data:
                raise ConnectionError("its answer ended too early")
            self._parser.feed_data(data)
        except (OSError, TimeoutError, httptools.HttpParserError) as error:
            self.close()
            raise _silent(self._worker, error) from error


class Peers:
    """The other workers; `ask` one of them."""

    def __init__(self, key: PeerKey, addresses: Callable[[], Awaitable[Mapping[str, str]]]) -> None:
        """Args: addresses: where the live workers of the group are reached, by name; raises DatabaseUnavailable."""
        self._key = key
        self._addresses = addresses
        self._asked = 0

    @contextlib.asynccontextmanager
    async def ask(self, worker: str, target: bytes, authorization: bytes) -> AsyncGenerator[PeerAnswer]:
        """Ask a worker for what its management API has; the answer, from its head on, for the length of a block.

        Args: target: path and query; authorization: the key of the client that asks, or empty.
        Raises: NoSuchWorker, WorkerSilent, NoCapacity, DatabaseUnavailable."""
        if self._asked >= MOST_AT_ONCE:
            raise NoCapacity(f"{MOST_AT_ONCE} requests to other workers are under way; try again")
        self._asked += 1
        try:
            address = (await self._addresses()).get(worker)
            if address is None:
                raise NoSuchWorker(f"no worker {worker!r} of the group is live; `sockd workers` lists them")
            answer = await self._sent(worker, address, target, authorization)
            try:
                await answer.head()
                yield answer
            finally:
                answer.close()
        finally:
            self._asked -= 1

    async def _sent(self, worker: str, address: str, target: bytes, authorization: bytes) -> PeerAnswer:
        host, port = parse_listen(address)
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError) as error:
            raise _silent(worker, error) from error
        _notice_loss(writer.get_extra_info("socket"))
        headers = {b"host": address.encode(), HEADER: self._key.sign(worker, target, authorization, time.time())}
        if authorization:
            headers[b"authorization"] = authorization
        lines = [b"GET %b%b HTTP/1.1" % (PREFIX, target), *(b"%b: %b" % each for each in headers.items())]
        writer.write(b"\r\n".join([*lines, b"connection: close", b"", b""]))
        return PeerAnswer(worker, writer, reader)


def _notice_loss(sock: socket.socket) -> None:
    """Have the kernel end a connection whose other machine is gone, while this end only waits."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _LOST_S // 3),
        (socket.TCP_KEEPINTVL, _LOST_S // 3),
        (socket.TCP_KEEPCNT, 2),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _silent(worker: str, error: BaseException) -> WorkerSilent:
    words = "" if isinstance(error, TimeoutError) and not str(error) else f" ({error})"
    return WorkerSilent(f"worker {worker} does not answer{words or f' within {ANSWER_S:g} s'}")
