"""Uploads: the bodies of requests to the management API and of forms of the page, read under a limit.

Owns nothing: files are the caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from sockd.base.errors import BadArchive, BadRequest, RequestTooLarge
from sockd.http.server.messages.head import length_of

_WRITE_BYTES = 1 << 20
T = TypeVar("T")


async def read_json(request: Request, shape: type[T], limit_bytes: int, refused: str) -> T:
    """The body as a shape; an empty one is {}. Args: refused: what it is not, in words, without a value of it.

    Raises: BadRequest, RequestTooLarge, ClientDisconnect."""
    body = await read_body(request, limit_bytes)
    return parse_json(body or b"{}", shape, refused)


def parse_json(text: bytes | str, shape: type[T], refused: str) -> T:
    """As `read_json`. Raises: BadRequest."""
    try:
        parsed = msgspec.json.decode(text, type=shape)
        # JSON can say "\ud800", which no UTF-8 has: neither a store nor an answer could hold it.
        msgspec.json.encode(parsed)
        return parsed
    except (msgspec.DecodeError, UnicodeError, RecursionError, OverflowError) as error:
        raise BadRequest(refused.format(error=error)) from None


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body. Raises: RequestTooLarge, ClientDisconnect."""
    return b"".join([chunk async for chunk in _chunks(request, limit_bytes)])


async def store(request: Request, archive: Any, limit_bytes: int, *, prefix_bytes: int = 0, setting: str = "") -> bytes:
    """Write the body to a file, a megabyte at a time and in a thread: a disk may stall for as long as it likes.

    Args: prefix_bytes: so many bytes come first and do not belong to the file; they are returned; setting: the key of the
        worker's configuration that the limit is from."""
    empty, pending, prefix = True, bytearray(), bytearray()
    async for chunk in _chunks(request, limit_bytes + prefix_bytes, f" ({setting})" if setting else ""):
        wanted = prefix_bytes - len(prefix)
        prefix += chunk[:wanted]
        if len(chunk) <= wanted:
            continue
        empty = False
        pending += chunk[wanted:]
        if len(pending) >= _WRITE_BYTES:
            await asyncio.to_thread(archive.write, pending)
            pending = bytearray()
    if empty:
        raise BadArchive("the body is empty; send an archive")
    await asyncio.to_thread(archive.write, pending)
    await asyncio.to_thread(archive.flush)
    return bytes(prefix)


async def _chunks(request: Request, limit_bytes: int, setting: str = "") -> AsyncIterator[bytes]:
    """What is declared too large is refused before any of it is read."""
    length = length_of(request.headers.get("content-length", "0"))
    if length > limit_bytes:
        raise RequestTooLarge(f"the body has {length} bytes; the limit is {limit_bytes}{setting}")
    total = 0
    async for chunk in request.stream():
        total += len(chunk)
        if total > limit_bytes:
            raise RequestTooLarge(f"the body has more than {limit_bytes} bytes, the limit{setting}")
        if chunk:
            yield chunk
