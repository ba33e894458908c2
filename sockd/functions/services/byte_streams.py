"""Two streams of bytes, of a client and of a program, each passed on to the other side. Owns nothing."""

from __future__ import annotations

import asyncio
from typing import Protocol

READ_BYTES = 64 * 1024
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""To the program of a service."""


class Source(Protocol):
    """What is read: a StreamReader, or a client's connection that has switched."""

    async def read(self, n: int, /) -> bytes:
        """What has come; empty: its end."""


class Target(Protocol):
    """What is written to: a StreamWriter, or a client's connection that has switched."""

    def write(self, data: bytes, /) -> None:
        """Send."""

    async def drain(self) -> None:
        """Wait until most of what was written has been taken."""

    def write_eof(self) -> None:
        """Send no more."""


async def pass_on(
    from_client: Source,
    to_client: Target,
    from_program: Source,
    to_program: Target,
) -> None:
    """Copy both ways until the program has closed its end, or one of them is gone.

    A client that has closed its sending half may still read what the program answers."""
    loop = asyncio.get_running_loop()
    inward = loop.create_task(pump(from_client, to_program))
    outward = loop.create_task(pump(from_program, to_client))
    try:
        await asyncio.wait((inward, outward), return_when=asyncio.FIRST_COMPLETED)
        if not outward.done() and inward.result():
            await asyncio.wait((outward,))
    finally:
        for way in (inward, outward):
            way.cancel()
        await asyncio.gather(inward, outward, return_exceptions=True)


async def pump(source: Source, target: Target) -> bool:
    """Copy until the end of the source, and end the target's sending half then; False: one of the two is gone."""
    try:
        while data := await source.read(READ_BYTES):
            target.write(data)
            await target.drain()
        target.write_eof()
    except OSError:
        return False
    return True
