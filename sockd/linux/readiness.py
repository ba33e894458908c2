"""Waiting until a descriptor is readable: on the event loop, or in a thread or program without one.

Owns nothing. The rule of the whole daemon: only the owner of a descriptor registers it with the event loop, and the owner
removes it from the loop before closing it. uvloop aborts the process for a closed descriptor that it still watches (libuv
meets EBADF in epoll_ctl(2)); and once the number is another descriptor's, that one's events are lost. Code that waits for a
descriptor of somebody else's waits for a duplicate of its own. tests/support/watched_descriptors.py checks the rule.
"""

from __future__ import annotations

import asyncio
import math
import select
from typing import Protocol


async def readable(fd: int) -> None:
    """Wait until a descriptor is readable. The caller owns it, and closes it after this has returned or raised only."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _resolve, ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


class Descriptor(Protocol):
    """A socket or file."""

    def fileno(self) -> int: ...


def is_readable(file: int | Descriptor, within_s: float) -> bool:
    """Whether a descriptor is readable, or at its end, by then. Blocks. Unlike select(2) it takes any descriptor."""
    poller = select.poll()
    poller.register(file, select.POLLIN)
    return bool(poller.poll(math.ceil(within_s * 1000)))


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
