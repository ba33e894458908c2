"""Two streams of bytes, of a client and of a program, each passed on to the other side. Owns nothing."""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import Protocol

READ_BYTES = 64 * 1024


class Source(Protocol):
    """What is read: a StreamReader, a client's connection that has switched, or the program's."""

    async def read(self, n: int, /) -> bytes:
        """What has come; empty: its end."""


class Target(Protocol):
    """What is written to: a StreamWriter, a client's connection that has switched, or the program's."""

    def write(self, data: bytes, /) -> None:
        """Send."""

    async def drain(self) -> None:
        """Wait until most of what was written has been taken."""

    def write_eof(self) -> None:
        """Send no more."""


class Stream(Source, Target, Protocol):
    """Both."""


class Outcome(Enum):
    """How the copying of a stream has ended."""

    END = auto()
    """The source has ended, and so has the target's sending half."""
    SOURCE_GONE = auto()
    TARGET_GONE = auto()


async def pass_on(from_client: Source, to_client: Target, program: Stream) -> None:
    """Copy both ways until the program has closed its end, or one of them is gone.

    A client that has closed its sending half may still read what the program answers. So may one that was sending when a program
    that does not read it all had answered: that takes no more, and what it has sent before comes to its end soon."""
    loop = asyncio.get_running_loop()
    inward = loop.create_task(pump(from_client, program))
    outward = loop.create_task(pump(program, to_client))
    try:
        await asyncio.wait((inward, outward), return_when=asyncio.FIRST_COMPLETED)
        if not outward.done() and inward.result() is not Outcome.SOURCE_GONE:
            await asyncio.wait((outward,))
    finally:
        for way in (inward, outward):
            way.cancel()
        await asyncio.gather(inward, outward, return_exceptions=True)


async def pump(source: Source, target: Target) -> Outcome:
    """Copy until the end of the source, and end the target's sending half then."""
    while True:
        try:
            data = await source.read(READ_BYTES)
        except OSError:
            return Outcome.SOURCE_GONE
        try:
            if not data:
                target.write_eof()
                return Outcome.END
            target.write(data)
            await target.drain()
        except OSError:
            return Outcome.TARGET_GONE
