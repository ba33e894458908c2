"""Startup data that is decrypted step by step into a file that nobody else writes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import mmap
import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sockd.chunk_agent.profile import OpenProfile, Profile, seal_profile
from sockd.chunk_agent.segments import SEGMENT_BYTES
from sockd.chunk_agent.startup_memory import StartupMemory
from sockd.chunks.chunk import CHUNK_BYTES
from sockd.chunks.manifest import Manifest
from sockd.plain.errors import Tampered
from tests.support.own_descriptors import descriptors
from tests.support.startup_profiles import KEY, opened, unsealed

IMAGE = Manifest("image", CHUNK_BYTES, "r1", (None,))
DATA = random.Random(5).randbytes(3 * SEGMENT_BYTES + 100)

pytestmark = pytest.mark.anyio


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    """What fills and releases startup data."""
    with ThreadPoolExecutor(1) as thread:
        yield thread


async def memory_of(profile: OpenProfile, thread: ThreadPoolExecutor) -> StartupMemory:
    try:
        memory = await StartupMemory.of(profile, thread)
    finally:
        profile.close()
    assert memory is not None
    return memory


def now(thread: ThreadPoolExecutor) -> list[str]:
    """The descriptors when the thread has done everything."""
    thread.submit(int).result()
    return descriptors()


@contextlib.contextmanager
def busy(thread: ThreadPoolExecutor) -> Iterator[None]:
    """The thread does nothing else."""
    end = threading.Event()
    waiting = thread.submit(end.wait)
    try:
        yield
    finally:
        end.set()
        waiting.result()


async def test_it_has_the_first_segment_at_once_and_the_others_when_they_are_filled(thread: ThreadPoolExecutor) -> None:
    before = descriptors()
    memory = await memory_of(opened(IMAGE, Profile((), DATA)), thread)
    assert (memory.filled, memory.is_full) == (SEGMENT_BYTES, False)
    await memory.fill(2)
    assert (memory.filled, memory.is_full) == (3 * SEGMENT_BYTES, False)
    await memory.fill(99)
    assert (memory.filled, memory.is_full) == (len(DATA), True)
    assert os.pread(memory.file, len(DATA) + 1, 0) == DATA
    assert len(descriptors()) == len(before) + 1, "what fills it is closed"
    memory.close()
    assert now(thread) == before


async def test_nobody_but_its_owner_writes_in_it(thread: ThreadPoolExecutor) -> None:
    memory = await memory_of(opened(IMAGE, Profile((), DATA)), thread)
    for write in (
        lambda: os.pwrite(memory.file, b"x", 0),
        lambda: os.ftruncate(memory.file, 0),
        lambda: mmap.mmap(memory.file, mmap.PAGESIZE).close(),
    ):
        with pytest.raises(PermissionError) as refused:
            write()
        assert refused.value.errno == errno.EPERM
    await memory.fill(99)
    assert os.pread(memory.file, len(DATA), 0) == DATA
    memory.close()


async def test_it_may_be_closed_while_it_is_filled(thread: ThreadPoolExecutor) -> None:
    before = descriptors()
    memory = await memory_of(opened(IMAGE, Profile((), DATA)), thread)
    filling = asyncio.ensure_future(memory.fill(99))
    await asyncio.sleep(0)
    memory.close()
    await filling
    assert now(thread) == before


@pytest.mark.parametrize(("changed", "filled"), [(0, None), (2, 2 * SEGMENT_BYTES)])
async def test_a_segment_that_was_changed_is_never_in_it(
    thread: ThreadPoolExecutor, changed: int, filled: int | None
) -> None:
    before = descriptors()
    sealed = bytearray(seal_profile(IMAGE, Profile((), DATA), KEY))
    sealed[-(100 + 16) - (3 - changed) * (SEGMENT_BYTES + 16)] ^= 1
    profile = unsealed(bytes(sealed), IMAGE)
    if filled is None:
        with pytest.raises(Tampered, match="segment 0"):
            await memory_of(profile, thread)
    else:
        memory = await memory_of(profile, thread)
        with pytest.raises(Tampered, match=f"segment {changed}"):
            await memory.fill(99)
        assert memory.filled == filled
        assert os.pread(memory.file, len(DATA), 0)[filled : filled + SEGMENT_BYTES].count(0) == SEGMENT_BYTES
        memory.close()
    assert now(thread) == before


async def test_it_is_filled_although_all_other_threads_wait(thread: ThreadPoolExecutor) -> None:
    waiting, loop = threading.Event(), asyncio.get_running_loop()
    others = [loop.run_in_executor(None, waiting.wait) for _ in range(64)]  # more than there are threads
    try:
        memory = await memory_of(opened(IMAGE, Profile((), DATA)), thread)
        await memory.fill(99)
    finally:
        waiting.set()
        await asyncio.gather(*others)
    assert memory.is_full
    memory.close()


@pytest.mark.parametrize("segments", [1, 99])
async def test_the_event_loop_does_not_wait_until_its_memory_is_free(thread: ThreadPoolExecutor, segments: int) -> None:
    before = descriptors()
    memory = await memory_of(opened(IMAGE, Profile((), DATA)), thread)
    await memory.fill(segments)
    filled = descriptors()
    with busy(thread):
        memory.close()
        assert descriptors() == filled
    assert now(thread) == before


async def test_a_profile_without_data_needs_no_memory(thread: ThreadPoolExecutor) -> None:
    assert await StartupMemory.of(opened(IMAGE, Profile((1, 2))), thread) is None
