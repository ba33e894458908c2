"""Starts from startup data: what one start has read is served to the next, without the chunks that it is from."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.s3.client import Client
from sockd.base.errors import Tampered
from sockd.images.agent.agent_wire import SourceSettings
from sockd.images.agent_keeper import agent_link, startup_feed
from sockd.images.agent_keeper.agent_link import AgentSettings
from sockd.images.agent_keeper.image_agent import ImageAgent
from sockd.images.chunks.chunk import CHUNK_BYTES
from sockd.images.chunks.directory_store import DirectoryStore
from sockd.images.chunks.manifest import Manifest
from sockd.images.chunks.store import ChunkStore
from sockd.images.chunks.store_settings import StoreSettings
from sockd.images.profiles.profile import Profile, seal_profile
from sockd.images.profiles.segments import SEGMENT_BYTES
from sockd.images.profiles.startup_data import BLOCK_BYTES
from sockd.images.profiles.startup_memory import StartupMemory
from tests.images.agent_keeper.conftest import UID, Start
from tests.images.agent_keeper.read_image import kill
from tests.support.cases import case
from tests.support.images.chunked_images import digest_of, random_image, read_at, stored
from tests.support.images.startup_profiles import KEY, opened, unsealed
from tests.support.jail import jail_at

CHUNKS = 40
IMAGE = random_image(CHUNKS)
DIGEST = hashlib.sha256(IMAGE).hexdigest()
READS = [
    (0, 4096),
    (8 * CHUNK_BYTES + 5000, 4096),
    (30 * CHUNK_BYTES - 8192, 16384),
    (21 * CHUNK_BYTES, 100_000),
    (3 * CHUNK_BYTES, 4096),
    (len(IMAGE) - 1000, 1000),
]
"""The reads of a start: within a chunk, over the end of one, of zeros, at the image's end."""
UNREAD = 12
"""A chunk that they do not touch."""
LONG = 9 * CHUNK_BYTES
MOST = 8 << 20

pytestmark = [pytest.mark.root, pytest.mark.anyio]
needs_resend = pytest.mark.usefixtures("resends")


async def run(path: str) -> list[bytes]:
    """What a start reads."""
    return [await asyncio.to_thread(read_at, path, offset, size) for offset, size in READS]


def startup_files() -> int:
    """That this process, the daemon in these tests, has open."""
    return sum(
        "memfd:startup data" in os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()
    )


async def no_startup_files() -> None:
    """Wait until the thread that releases them has done so."""
    while startup_files():
        await asyncio.sleep(0)


RIGHT = [IMAGE[offset : offset + size] for offset, size in READS]


async def recorded(agent: ImageAgent, manifest: Manifest, most_bytes: int = MOST) -> Profile:
    """The profile of a start."""
    assert await run(await agent.open(manifest)) == RIGHT
    profile = await agent.profile(manifest, most_bytes)
    assert profile is not None
    await agent.close(manifest.image)
    return profile


async def from_nothing(agent: ImageAgent, directory: Path) -> None:
    """End an agent, whose cache is gone."""
    await agent.aclose()
    (directory / "agent" / "l1").unlink()


Opener = Callable[[Callable[[ImageAgent, Manifest], Awaitable[Profile]]], Awaitable[tuple[ImageAgent, str]]]


@pytest.fixture
def opened_without_store(
    start: Start, s3_settings: StoreSettings, s3_store: ChunkStore, s3_client: Client, tmp_path: Path
) -> Opener:
    """Opens the image with the profile of a start that is recorded so, where it has no cache and the store answers 503: the
    agent, and the image's path."""

    async def open_it(record: Callable[[ImageAgent, Manifest], Awaitable[Profile]]) -> tuple[ImageAgent, str]:
        manifest = await asyncio.to_thread(stored, IMAGE, s3_store)
        first = await start(s3_settings)
        profile = await record(first, manifest)
        await from_nothing(first, tmp_path)
        await asyncio.to_thread(s3_client.inject, status=503)
        agent = await start(s3_settings)
        return agent, await agent.open(manifest, opened(manifest, profile))

    return open_it


async def test_a_start_from_startup_data_reads_the_image_s_bytes_and_fetches_no_chunk(
    start: Start, s3_settings: StoreSettings, s3_store: ChunkStore, s3_client: Client, tmp_path: Path
) -> None:
    manifest = await asyncio.to_thread(stored, IMAGE, s3_store)
    first = await start(s3_settings)
    profile = await recorded(first, manifest)
    blocks = {at // BLOCK_BYTES for offset, size in READS for at in range(offset, offset + size)}
    assert len(profile.data) < (len(blocks) + 2) * BLOCK_BYTES
    await from_nothing(first, tmp_path)
    second = await start(s3_settings)
    await asyncio.to_thread(s3_client.forget_requests)
    path = await second.open(manifest, opened(manifest, profile))
    assert await run(path) == RIGHT
    assert await run(path) == RIGHT, "again, although all was read once"
    assert await asyncio.to_thread(s3_client.requests) == []
    assert await asyncio.to_thread(digest_of, path) == DIGEST, "the rest comes from chunks"


async def test_other_blocks_of_a_chunk_that_startup_data_has_come_from_the_chunk(
    start: Start, store: DirectoryStore, tmp_path: Path
) -> None:
    manifest = stored(IMAGE, store)
    first = await start()
    profile = await recorded(first, manifest)
    await from_nothing(first, tmp_path)
    second = await start()
    path = await second.open(manifest, opened(manifest, profile))
    at = 8 * CHUNK_BYTES + 4096  # of three blocks, the first two were read
    assert await asyncio.to_thread(read_at, path, at, 12288) == IMAGE[at : at + 12288]
    counters = await second.counters()
    assert (counters.get("startup_reads", 0), counters["origin_fetches"]) == (0, 1)


async def test_what_the_bound_of_startup_data_leaves_out_is_prefetched_as_chunks(
    start: Start, s3_settings: StoreSettings, s3_store: ChunkStore, s3_client: Client, tmp_path: Path
) -> None:
    manifest = await asyncio.to_thread(stored, IMAGE, s3_store)
    first = await start(s3_settings)
    most_bytes = 40_000
    profile = await recorded(first, manifest, most_bytes)
    assert 0 < len(profile.data) <= most_bytes
    await from_nothing(first, tmp_path)
    second = await start(s3_settings)
    await asyncio.to_thread(s3_client.forget_requests)
    path = await second.open(manifest, opened(manifest, profile))
    await asyncio.to_thread(s3_client.requests, at_least=2)
    assert await run(path) == RIGHT
    requests = await asyncio.to_thread(s3_client.requests)
    wanted = {chunk.name.hex() for number in (21, CHUNKS - 1) if (chunk := manifest.chunks[number])}
    assert {each["path"].rpartition("/")[2] for each in requests} == wanted


@needs_resend
async def test_startup_data_of_a_wrong_form_is_refused_and_the_image_is_served_by_chunks(
    start: Start, store: DirectoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    agent = await start()
    manifest = stored(IMAGE, store)
    path = await agent.open(manifest, opened(manifest, Profile((8, 21), b"\0\0\0\7 of no form")))
    await no_startup_files()
    assert "refuses the startup data of image" in caplog.text
    assert await asyncio.to_thread(digest_of, path) == DIGEST
    await kill(agent)
    assert await run(path) == RIGHT


@dataclass
class Gate:
    """Holds back the segments after the first until it is opened."""

    opened: asyncio.Event
    filled: asyncio.Event


@pytest.fixture
async def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    found, fill = Gate(asyncio.Event(), asyncio.Event()), StartupMemory.fill

    async def held(memory: StartupMemory, most: int) -> None:
        if memory.filled:
            await found.opened.wait()
        await fill(memory, most)
        if memory.is_full:
            found.filled.set()

    monkeypatch.setattr(StartupMemory, "fill", held)
    return found


async def long_start(agent: ImageAgent, manifest: Manifest) -> Profile:
    """The profile of a start that reads the first LONG bytes, which are several segments."""
    path = await agent.open(manifest)
    assert await asyncio.to_thread(read_at, path, 0, LONG) == IMAGE[:LONG]
    profile = await agent.profile(manifest, MOST)
    await agent.close(manifest.image)
    assert profile is not None and len(profile.data) > 3 * SEGMENT_BYTES
    return profile


@pytest.fixture(params=[0, 1])
def kills(request: pytest.FixtureRequest) -> int:
    if request.param:
        request.getfixturevalue("resends")
    return int(request.param)


@case("I14", "SIGKILL the agent between two segments of startup data, without the store", expect="the start goes on")
async def test_every_segment_of_startup_data_is_read_when_it_has_been_decrypted(
    kills: int, opened_without_store: Opener, gate: Gate
) -> None:
    agent, path = await opened_without_store(long_start)
    assert await asyncio.to_thread(read_at, path, 0, 4096) == IMAGE[:4096]
    for _ in range(kills):
        await kill(agent)
    gate.opened.set()
    await gate.filled.wait()
    assert await asyncio.to_thread(read_at, path, 4096, LONG - 4096) == IMAGE[4096:LONG]
    assert (await agent.counters()).get("reads_waited", 0) == 0


@case(
    "I15",
    "change a bit of startup data on the worker's disk",
    expect="the start goes on by chunks; its bytes are right",
)
async def test_a_segment_of_startup_data_that_was_changed_is_never_served(
    start: Start, store: DirectoryStore, gate: Gate
) -> None:
    refused: list[str] = []
    agent = await start(on_refused=refused.append)
    manifest = stored(IMAGE, store)
    sealed = bytearray(seal_profile(manifest, await long_start(agent, manifest), KEY))
    sealed[-SEGMENT_BYTES] ^= 1
    path = await agent.open(manifest, unsealed(bytes(sealed), manifest))
    assert await asyncio.to_thread(read_at, path, 0, 4096) == IMAGE[:4096]
    assert (await agent.counters())["startup_reads"] > 0
    gate.opened.set()
    assert await asyncio.to_thread(digest_of, path) == DIGEST
    while (await agent.counters())["starting_images"]:
        await asyncio.sleep(0)
    await no_startup_files()
    assert refused == [manifest.image]


async def test_startup_data_that_cannot_be_read_now_is_not_called_changed(
    start: Start, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    agent = await start(on_refused=refused.append)
    manifest = stored(IMAGE, store)
    profile = await long_start(agent, manifest)

    async def fails(memory: StartupMemory, most: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(StartupMemory, "fill", fails)
    with contextlib.closing(opened(manifest, profile)) as sealed:
        path = await agent.open(manifest, sealed)
    assert await asyncio.to_thread(digest_of, path) == DIGEST
    await no_startup_files()
    assert refused == []


async def test_a_start_for_whose_startup_data_there_is_no_memory_goes_by_chunks(
    start: Start, store: DirectoryStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = await start()
    manifest, other = stored(IMAGE, store), stored(IMAGE, store, "another")
    profile = await recorded(first, manifest)
    await from_nothing(first, tmp_path)
    agent = await start(startup_bytes=len(profile.data))
    assert await run(await agent.open(manifest, opened(manifest, profile))) == RIGHT
    counters = await agent.counters()
    assert (counters["startup_bytes"], counters["startup_refusals"]) == (len(profile.data), 0)
    with contextlib.closing(opened(other, profile)) as sealed:
        path = await agent.open(other, sealed)
    assert "another starts without startup data" in caplog.text
    assert await run(path) == RIGHT
    counters = await agent.counters()
    assert (counters["starting_images"], counters["startup_refusals"]) == (1, 1)
    assert counters["origin_chunks"] > 0
    for each in (manifest, other):
        await agent.close(each.image)
    assert await run(await agent.open(other, opened(other, profile))) == RIGHT
    assert (await agent.counters())["startup_bytes"] == len(profile.data)


@case("I14", "SIGKILL the agent in the middle of a start from a profile, without the store", expect="the start goes on")
@needs_resend
async def test_a_start_goes_on_from_startup_data_when_the_agent_is_killed(
    opened_without_store: Opener,
) -> None:
    agent, path = await opened_without_store(recorded)
    for offset, size in READS:
        await kill(agent) if offset < CHUNK_BYTES * 20 else None
        assert await asyncio.to_thread(read_at, path, offset, size) == IMAGE[offset : offset + size]
    assert agent.starts == 4


@case("I14", "SIGKILL the agent in a start from another build's profile, without the store", expect="the start goes on")
@needs_resend
async def test_a_start_from_another_builds_data_reads_its_own_bytes_when_the_agent_dies(
    start: Start, s3_settings: StoreSettings, s3_store: ChunkStore, s3_client: Client, tmp_path: Path
) -> None:
    at = 5 * CHUNK_BYTES
    added = random_image(3, seed=2)[: 2 * CHUNK_BYTES]
    before = await asyncio.to_thread(stored, IMAGE, s3_store)
    build = await asyncio.to_thread(stored, IMAGE[:at] + added + IMAGE[at:], s3_store, "build")
    first = await start(s3_settings)
    profile = opened(before, await recorded(first, before)).derived(before, build)
    await from_nothing(first, tmp_path)
    await asyncio.to_thread(s3_client.inject, status=503)
    agent = await start(s3_settings)
    path = await agent.open(build, profile)
    profile.close()
    for (offset, size), right in zip(READS, RIGHT, strict=True):
        await kill(agent) if offset < CHUNK_BYTES * 20 else None
        moved = offset + (len(added) if offset >= at else 0)
        assert await asyncio.to_thread(read_at, path, moved, size) == right
    assert agent.starts == 4
    with pytest.raises(OSError, match="Input/output"):
        await asyncio.to_thread(read_at, path, at, 4096)  # which only the build has


@needs_resend
async def test_a_start_in_which_the_agent_was_killed_is_no_profile(start: Start, store: DirectoryStore) -> None:
    agent = await start()
    manifest = stored(IMAGE, store)
    path = await agent.open(manifest)
    await run(path)
    await kill(agent)
    await run(path)
    assert await agent.profile(manifest, MOST) is None


@needs_resend
async def test_startup_data_is_released_when_the_start_is_over(
    start: Start, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await start()
    manifest = stored(IMAGE, store)
    profile = await recorded(agent, manifest)
    await agent.open(manifest, opened(manifest, profile))
    assert (startup_files(), (await agent.counters())["starting_images"]) == (1, 1)
    await agent.close(manifest.image)
    await no_startup_files()
    monkeypatch.setattr(startup_feed, "START_S", 0.0)
    path = await agent.open(manifest, opened(manifest, profile))
    while (await agent.counters())["starting_images"]:
        await asyncio.sleep(0)
    await no_startup_files()
    assert await run(path) == RIGHT
    await kill(agent)
    assert (await agent.counters())["starting_images"] == 0
    assert await run(path) == RIGHT
    await agent.aclose()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("startup data")]


async def test_an_image_that_moves_to_another_root_during_its_start_keeps_its_startup_data(
    start: Start, store: DirectoryStore, store_path: Path
) -> None:
    agent = await start(l1_bytes=16 * CHUNK_BYTES)
    manifest = stored(IMAGE, store)
    profile = await recorded(agent, manifest)
    path = await agent.open(manifest, opened(manifest, profile))
    await agent.switch(stored(IMAGE, store, root="r2"))
    shutil.rmtree(store_path)
    assert await run(path) == RIGHT


@asynccontextmanager
async def changed_agent(tmp_path: Path, store_path: Path, change: Callable[[str], str]) -> AsyncIterator[ImageAgent]:
    """One whose `agent_process.py` is changed."""
    ours, *libraries = agent_link.places()
    copy = tmp_path / "copy" / "sockd"
    shutil.copytree(ours[0], copy)
    process = copy / "images" / "agent" / "agent_process.py"
    code = process.read_text()
    process.write_text(change(code))
    assert process.read_text() != code
    async with jail_at(tmp_path / "jail-of-the-copy", ((str(copy), ours[1]), *libraries)) as jail:
        source = SourceSettings(store=StoreSettings(url=str(store_path)), l1_bytes=64 << 20)
        agent = await ImageAgent.start(jail, AgentSettings(uid=UID, source=source), tmp_path / "agent")
        try:
            yield agent
        finally:
            await agent.aclose()


@case("I15", "have an agent hand over other bytes for a profile", expect="refused, so that no other worker gets them")
@pytest.mark.parametrize(
    "changed", ["os.pwrite(file, bytes([data[0] ^ 1]) + data[1:], 0)", "os.pwrite(file, data[:-1], 0)"]
)
async def test_bytes_that_are_not_the_chunk_s_do_not_become_startup_data(
    tmp_path: Path, store: DirectoryStore, store_path: Path, changed: str
) -> None:
    manifest = stored(IMAGE, store)
    async with changed_agent(
        tmp_path, store_path, lambda code: code.replace("os.pwrite(file, data, 0)", changed)
    ) as agent:
        await run(await agent.open(manifest))
        with pytest.raises(Tampered):
            await agent.profile(manifest, MOST)
