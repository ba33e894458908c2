"""Uploads: the bodies of management requests, read under a limit.

Owns nothing: files are the caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request

from sockd.errors import BadArchive, RequestTooLarge

_WRITE_BYTES = 1 << 20


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body. Raises: RequestTooLarge, ClientDisconnect."""
    return b"".join([chunk async for chunk in _chunks(request, limit_bytes)])


async def store(request: Request, archive: Any, limit_bytes: int, *, prefix_bytes: int = 0) -> bytes:
    """Write the body to a file, a megabyte at a time and beside the loop: a disk may stall for as long as it likes.

    Args: prefix_bytes: so many bytes come first and do not belong to the file; they are returned."""
    empty, pending, prefix = True, bytearray(), bytearray()
    async for chunk in _chunks(request, limit_bytes + prefix_bytes):
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
        raise BadArchive("the body is empty; send a zip")
    await asyncio.to_thread(archive.write, pending)
    await asyncio.to_thread(archive.flush)
    return bytes(prefix)


async def _chunks(request: Request, limit_bytes: int) -> AsyncIterator[bytes]:
    """What is declared too large is refused before any of it is read."""
    if int(request.headers.get("content-length", "0")) > limit_bytes:
        raise RequestTooLarge(f"the body has {request.headers['content-length']} bytes; the limit is {limit_bytes}")
    total = 0
    async for chunk in request.stream():
        total += len(chunk)
        if total > limit_bytes:
            raise RequestTooLarge(f"the body has more than {limit_bytes} bytes, the limit")
        if chunk:
            yield chunk
