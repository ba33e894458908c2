"""An image that readers read through an agent: its chunks, how a part is read, and how the agent is killed meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import signal
import time
from pathlib import Path

import pytest

from sockd.images.agent_keeper.image_agent import ImageAgent
from sockd.images.chunks.chunk import CHUNK_BYTES
from sockd.images.profiles.profile import Profile
from tests.support.images.chunked_images import random_image, read_at

CHUNKS = 40
IMAGE = random_image(CHUNKS)
DIGEST = hashlib.sha256(IMAGE).hexdigest()
SMALL_CACHE = 20 * CHUNK_BYTES
STALL_S = 1.0
NOTHING_AHEAD = Profile((0,))
"""With a profile no chunk is fetched behind the first that is read."""


async def part(path: str, number: int) -> bytes:
    """4 KiB from the middle of a chunk."""
    return await asyncio.to_thread(read_at, path, number * CHUNK_BYTES + 100_000, 4096)


def right_part(number: int) -> bytes:
    return IMAGE[number * CHUNK_BYTES + 100_000 :][:4096]


async def fails_with_eio(path: str, number: int) -> float:
    """How long the read took."""
    begun_s = time.monotonic()
    with pytest.raises(OSError) as raised:
        await part(path, number)
    assert raised.value.errno == errno.EIO
    return time.monotonic() - begun_s


async def part_in_the_end(path: str, number: int) -> bytes:
    """As `part`; for a moment after others have failed, reads fail at once."""
    while True:
        with contextlib.suppress(OSError):
            return await part(path, number)


async def kill(agent: ImageAgent) -> None:
    """SIGKILL the agent, not its launcher; returns when the next one serves."""
    starts = agent.starts
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    while agent.starts == starts:
        await asyncio.sleep(0)
    await agent.counters()
