"""A client that sends exactly the bytes it is given, and reads answers apart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

DEADLINE_S = 60


@dataclass(frozen=True)
class Reply:
    """One response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Raw:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        """Queue bytes; what the server has closed meanwhile is found out by reading."""
        self.writer.write(data)

    async def reply(self) -> Reply:
        """The next response, its body by content-length or chunks."""
        async with asyncio.timeout(DEADLINE_S):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.split("\r\n")[:-2]
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            if headers.get("transfer-encoding") == "chunked":
                body = b"".join([chunk async for chunk in self._chunks()])
            else:
                body = await self._reader.readexactly(int(headers.get("content-length", "0")))
            return Reply(int(first.split()[1]), headers, body)

    async def _chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self._reader.readline(), 16):
            yield await self._reader.readexactly(size)
            await self._reader.readline()
        await self._reader.readline()

    async def ask(self, data: bytes) -> Reply:
        """Send and read one response."""
        self.send(data)
        return await self.reply()

    async def until(self, end: bytes) -> bytes:
        """Everything up to these bytes."""
        async with asyncio.timeout(DEADLINE_S):
            return await self._reader.readuntil(end)

    def pause(self) -> None:
        """Take nothing from the kernel's buffer for now, whatever comes."""
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    def go_on(self) -> None:
        """After `pause`."""
        self.writer.transport.resume_reading()  # type: ignore[attr-defined]

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self._reader.read()
            except ConnectionResetError:
                return b""


@asynccontextmanager
async def raw(address: int | str) -> AsyncIterator[Raw]:
    """A connection to a port of 127.0.0.1, or to the path of a Unix socket."""
    if isinstance(address, int):
        reader, writer = await asyncio.open_connection("127.0.0.1", address)
    else:
        reader, writer = await asyncio.open_unix_connection(address)
    try:
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()


def post(path: str, body: bytes = b"{}", *headers: str) -> bytes:
    """A plain request."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    """A request without a body."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *headers]).encode("latin-1") + b"\r\n\r\n"
