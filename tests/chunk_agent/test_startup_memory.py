"""Startup data that is decrypted step by step into a file that nobody else writes."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import random

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


async def memory_of(profile: OpenProfile) -> StartupMemory:
    try:
        memory = await StartupMemory.of(profile)
    finally:
        profile.close()
    assert memory is not None
    return memory


async def test_it_has_the_first_segment_at_once_and_the_others_when_they_are_filled() -> None:
    before = descriptors()
    memory = await memory_of(opened(IMAGE, Profile((), DATA)))
    assert (memory.filled, memory.is_full) == (SEGMENT_BYTES, False)
    await memory.fill(2)
    assert (memory.filled, memory.is_full) == (3 * SEGMENT_BYTES, False)
    await memory.fill(99)
    assert (memory.filled, memory.is_full) == (len(DATA), True)
    assert os.pread(memory.file, len(DATA) + 1, 0) == DATA
    assert len(descriptors()) == len(before) + 1, "what fills it is closed"
    memory.close()
    assert descriptors() == before


async def test_nobody_but_its_owner_writes_in_it() -> None:
    memory = await memory_of(opened(IMAGE, Profile((), DATA)))
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


async def test_it_may_be_closed_while_it_is_filled() -> None:
    before = descriptors()
    memory = await memory_of(opened(IMAGE, Profile((), DATA)))
    filling = asyncio.ensure_future(memory.fill(99))
    await asyncio.sleep(0)
    memory.close()
    await filling
    assert descriptors() == before


@pytest.mark.parametrize(("changed", "filled"), [(0, None), (2, 2 * SEGMENT_BYTES)])
async def test_a_segment_that_was_changed_is_never_in_it(changed: int, filled: int | None) -> None:
    before = descriptors()
    sealed = bytearray(seal_profile(IMAGE, Profile((), DATA), KEY))
    sealed[-(100 + 16) - (3 - changed) * (SEGMENT_BYTES + 16)] ^= 1
    profile = unsealed(bytes(sealed), IMAGE)
    if filled is None:
        with pytest.raises(Tampered, match="segment 0"):
            await memory_of(profile)
    else:
        memory = await memory_of(profile)
        with pytest.raises(Tampered, match=f"segment {changed}"):
            await memory.fill(99)
        assert memory.filled == filled
        assert os.pread(memory.file, len(DATA), 0)[filled : filled + SEGMENT_BYTES].count(0) == SEGMENT_BYTES
        memory.close()
    assert descriptors() == before


async def test_a_profile_without_data_needs_no_memory() -> None:
    assert await StartupMemory.of(opened(IMAGE, Profile((1, 2)))) is None
