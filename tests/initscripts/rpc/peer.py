"""HTTP servers that answer exactly what a test tells them to, and remember who asked."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Request:
    """One that came, and the connection that its answer goes to."""

    line: str
    headers: dict[str, str]
    body: bytes
    client_port: int
    number: int
    """The number of this request on its connection, from 1."""
    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def answer(self, body: bytes = b"", status: int = 200, **headers: object) -> None:
        """A reply with a length; underscores in names of headers are hyphens."""
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        self.send(f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n{lines}\r\n".encode() + body)

    def hang_up(self) -> None:
        """Close after what was sent."""
        self.writer.close()


Answer = Callable[[Request], Awaitable[None]]


@dataclass
class Peer:
    """A running server."""

    port: int
    scheme: str
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    ended: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    """The client ports whose connections have ended."""

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def sees(self, line: str) -> Request:
        """The one request that began so."""
        (found,) = (request for request in self.requests if request.line.startswith(line))
        return found


@asynccontextmanager
async def peer(answer: Answer, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[Peer]:
    """A server on a port of its own. Connections that stay open are closed with it."""
    writers: list[asyncio.StreamWriter] = []
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        tasks.add(task)
        writers.append(writer)
        served.connections += 1
        client_port = writer.get_extra_info("peername")[1]
        number = 0
        try:
            while True:
                number += 1
                request = await _read(reader, writer, client_port, number)
                served.requests.append(request)
                await answer(request)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except asyncio.CancelledError:
            pass  # the server ends; start_server would log it
        finally:
            served.ended.put_nowait(client_port)
            writer.close()

    server = await asyncio.start_server(serve, host, 0, ssl=tls)
    served = Peer(server.sockets[0].getsockname()[1], "https" if tls else "http")
    try:
        yield served
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            with suppress(AttributeError):  # before Python 3.11.4, of one over TLS that has ended already
                writer.transport.abort()


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_port: int, number: int) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")[:-2]
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(first, headers, body, client_port, number, writer, reader)
