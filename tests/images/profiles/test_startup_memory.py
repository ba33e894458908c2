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

import pytest

from sockd.base.errors import Tampered
from sockd.images.chunks.chunk import CHUNK_BYTES
from sockd.images.chunks.manifest import Manifest
from sockd.images.profiles.profile import OpenProfile, Profile, seal_profile
from sockd.images.profiles.segments import SEGMENT_BYTES, Segments
from sockd.images.profiles.startup_memory import StartupMemory
from sockd.images.profiles.startup_room import NoStartupRoom, StartupRoom
from tests.support.images.startup_profiles import KEY, opened, unsealed
from tests.support.own_descriptors import descriptors

IMAGE = Manifest("image", CHUNK_BYTES, "r1", (None,))
DATA = random.Random(5).randbytes(3 * SEGMENT_BYTES + 100)

pytestmark = pytest.mark.anyio


@pytest.fixture
def room() -> Iterator[StartupRoom]:
    """For the data of one image, and half of another's."""
    with contextlib.closing(StartupRoom(len(DATA) * 3 // 2)) as room:
        yield room


async def memory_of(profile: OpenProfile, room: StartupRoom) -> StartupMemory:
    try:
        memory = await StartupMemory.of(profile, room)
    finally:
        profile.close()
    assert memory is not None
    return memory


def now(room: StartupRoom) -> list[str]:
    """The descriptors when its thread has done everything."""
    room.thread.submit(int).result()
    return descriptors()


@contextlib.contextmanager
def busy(room: StartupRoom) -> Iterator[None]:
    """Its thread does nothing else."""
    end = threading.Event()
    waiting = room.thread.submit(end.wait)
    try:
        yield
    finally:
        end.set()
        waiting.result()


async def test_it_has_the_first_segment_at_once_and_the_others_when_they_are_filled(room: StartupRoom) -> None:
    before = descriptors()
    memory = await memory_of(opened(IMAGE, Profile((), DATA)), room)
    assert (memory.filled, memory.is_full) == (SEGMENT_BYTES, False)
    await memory.fill(2)
    assert (memory.filled, memory.is_full) == (3 * SEGMENT_BYTES, False)
    await memory.fill(99)
    assert (memory.filled, memory.is_full) == (len(DATA), True)
    assert os.pread(memory.file, len(DATA) + 1, 0) == DATA
    assert len(descriptors()) == len(before) + 1, "what fills it is closed"
    memory.close()
    assert now(room) == before


async def test_no_one_but_its_owner_writes_in_it(room: StartupRoom) -> None:
    memory = await memory_of(opened(IMAGE, Profile((), DATA)), room)
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


async def test_it_may_be_closed_while_it_is_filled(room: StartupRoom) -> None:
    before = descriptors()
    memory = await memory_of(opened(IMAGE, Profile((), DATA)), room)
    filling = asyncio.ensure_future(memory.fill(99))
    await asyncio.sleep(0)
    memory.close()
    await filling
    assert now(room) == before


@pytest.mark.parametrize(("changed", "filled"), [(0, None), (2, 2 * SEGMENT_BYTES)])
async def test_a_segment_that_was_changed_is_never_in_it(room: StartupRoom, changed: int, filled: int | None) -> None:
    before = descriptors()
    sealed = bytearray(seal_profile(IMAGE, Profile((), DATA), KEY))
    sealed[-(100 + 16) - (3 - changed) * (SEGMENT_BYTES + 16)] ^= 1
    profile = unsealed(bytes(sealed), IMAGE)
    if filled is None:
        with pytest.raises(Tampered, match="segment 0"):
            await memory_of(profile, room)
    else:
        memory = await memory_of(profile, room)
        with pytest.raises(Tampered, match=f"segment {changed}"):
            await memory.fill(99)
        assert memory.filled == filled
        assert os.pread(memory.file, len(DATA), 0)[filled : filled + SEGMENT_BYTES].count(0) == SEGMENT_BYTES
        memory.close()
    assert now(room) == before


async def test_it_is_filled_although_all_other_threads_wait(room: StartupRoom) -> None:
    waiting, loop = threading.Event(), asyncio.get_running_loop()
    others = [loop.run_in_executor(None, waiting.wait) for _ in range(64)]  # more than there are threads
    try:
        memory = await memory_of(opened(IMAGE, Profile((), DATA)), room)
        await memory.fill(99)
    finally:
        waiting.set()
        await asyncio.gather(*others)
    assert memory.is_full
    memory.close()


@pytest.mark.parametrize("segments", [1, 99])
async def test_the_event_loop_does_not_wait_until_its_memory_is_free(room: StartupRoom, segments: int) -> None:
    before = descriptors()
    memory = await memory_of(opened(IMAGE, Profile((), DATA)), room)
    await memory.fill(segments)
    filled = descriptors()
    with busy(room):
        memory.close()
        assert descriptors() == filled
    assert now(room) == before


async def test_the_memory_of_a_segment_is_there_before_it_is_written(
    room: StartupRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = await memory_of(opened(IMAGE, Profile((), DATA)), room)
    allocated: list[int] = []

    def read_into(segments: Segments, file: int, number: int, piece: memoryview) -> None:
        allocated.append(os.fstat(memory.file).st_blocks * 512)
        read_at_once(segments, file, number, piece)

    read_at_once = Segments.read_into
    monkeypatch.setattr(Segments, "read_into", read_into)
    await memory.fill(2)
    assert len(allocated) == 2 and allocated[0] >= 2 * SEGMENT_BYTES and allocated[1] >= 3 * SEGMENT_BYTES
    memory.close()


async def test_a_host_without_memory_for_it_is_an_error_and_nothing_is_kept(
    room: StartupRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = descriptors()
    monkeypatch.setattr(os, "posix_fallocate", fails)
    with pytest.raises(OSError, match="No space"):
        await memory_of(opened(IMAGE, Profile((), DATA)), room)
    assert (now(room), room.held_bytes) == (before, 0)


async def test_what_does_not_fit_the_room_is_refused_until_something_is_closed(room: StartupRoom) -> None:
    before = descriptors()
    first = await memory_of(opened(IMAGE, Profile((), DATA)), room)
    with pytest.raises(NoStartupRoom, match=r"have 3 of 4 MB \(images.startup_mb\), and it needs 4"):
        await memory_of(opened(IMAGE, Profile((), DATA)), room)
    first.close()
    second = await memory_of(opened(IMAGE, Profile((), DATA)), room)
    assert (room.held_bytes, room.refusals) == (len(DATA), 1)
    second.close()
    assert (now(room), room.held_bytes) == (before, 0)


async def test_a_profile_without_data_needs_no_memory(room: StartupRoom) -> None:
    assert await StartupMemory.of(opened(IMAGE, Profile((1, 2))), room) is None
