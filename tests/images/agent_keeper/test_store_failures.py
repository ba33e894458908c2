"""What fails around the agent's data: the store, chunks, the cache. Readers get the right bytes, later, or EIO."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from benchmarks.s3.client import Client
from sockd.base.errors import ChunkMissing, StoreUnavailable, Tampered
from sockd.images.agent.agent_wire import SourceSettings
from sockd.images.agent_keeper import agent_link
from sockd.images.agent_keeper.agent_link import AgentSettings
from sockd.images.agent_keeper.image_agent import ImageAgent
from sockd.images.chunks.chunk import CHUNK_BYTES
from sockd.images.chunks.directory_store import DirectoryStore
from sockd.images.chunks.store import ChunkStore
from sockd.images.chunks.store_settings import StoreSettings
from tests.images.agent_keeper.conftest import UID, Start, Troubles
from tests.images.agent_keeper.read_image import (
    CHUNKS,
    DIGEST,
    IMAGE,
    SMALL_CACHE,
    STALL_S,
    fails_with_eio,
    kill,
    part,
    part_in_the_end,
    right_part,
)
from tests.support.cases import case
from tests.support.images.chunked_images import chunk_path, digest_of, flip_bit, random_image, stored
from tests.support.jail import jail_at

pytestmark = [pytest.mark.root, pytest.mark.anyio]


@case("I5", "the store answers 503 to all", expect="EIO after a bounded time; cached chunks are read")
async def test_a_refusing_store_fails_reads_in_bounded_time_and_cached_chunks_are_read(
    start: Start, s3_settings: StoreSettings, s3_store: ChunkStore, s3_client: Client, troubles: Troubles
) -> None:
    manifest = await asyncio.to_thread(stored, IMAGE, s3_store)
    agent = await start(s3_settings, stall_s=STALL_S)
    path = await agent.open(manifest)
    assert await part(path, 1) == right_part(1)
    await asyncio.to_thread(s3_client.inject, status=503)
    assert await fails_with_eio(path, 20) < 20
    assert await part(path, 1) == right_part(1)
    assert [(image, type(error)) for image, error in troubles] == [("image", StoreUnavailable)]
    await asyncio.to_thread(s3_client.remove_faults)
    assert await part_in_the_end(path, 20) == right_part(20)


@case("I6", "the store never answers", expect="EIO after a bounded time; cached chunks are read")
async def test_a_store_that_does_not_answer_fails_reads_after_the_stall_time(
    start: Start, s3_settings: StoreSettings, s3_store: ChunkStore, s3_client: Client, troubles: Troubles
) -> None:
    manifest = await asyncio.to_thread(stored, IMAGE, s3_store)
    agent = await start(s3_settings, stall_s=STALL_S)
    path = await agent.open(manifest)
    assert await part(path, 1) == right_part(1)
    await asyncio.to_thread(s3_client.inject, delay_s=600)
    assert STALL_S <= await fails_with_eio(path, 20) < STALL_S + 10
    assert [type(error) for _, error in troubles] == [StoreUnavailable]
    assert await part(path, 1) == right_part(1)


@case("I7", "the store takes a second for each chunk", expect="right bytes, no error")
async def test_a_slow_store_is_waited_for(
    start: Start, s3_settings: StoreSettings, s3_store: ChunkStore, s3_client: Client, troubles: Troubles
) -> None:
    manifest = await asyncio.to_thread(stored, IMAGE, s3_store)
    agent = await start(s3_settings, stall_s=4.0, prefetches=1)
    path = await agent.open(manifest)
    await asyncio.to_thread(s3_client.inject, delay_s=1.0, method="GET")
    begun_s = time.monotonic()
    assert await asyncio.gather(*(part(path, number) for number in range(20, 34))) == [
        right_part(number) for number in range(20, 34)
    ]
    assert time.monotonic() - begun_s > 1.0
    assert troubles == []


@case("I8", "SIGKILL a reader that waits for a store which never answers", expect="it ends at once")
async def test_a_killed_reader_does_not_wait_for_the_store(
    s3_client: Client, one_chunk_read: tuple[ImageAgent, str]
) -> None:
    agent, path = one_chunk_read
    await asyncio.to_thread(s3_client.inject, delay_s=600)
    file = await asyncio.to_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        reader = await asyncio.create_subprocess_exec("cat", stdin=file, stdout=asyncio.subprocess.DEVNULL)
        await asyncio.to_thread(s3_client.requests, at_least=1)
        reader.kill()
        assert await reader.wait() == -signal.SIGKILL
        assert (await agent.counters())["interrupted"] == 1
    finally:
        await asyncio.to_thread(os.close, file)


@case("I9", "flip a bit in a third of the chunks of the store", expect="EIO for these, never data")
async def test_changed_chunks_of_the_store_are_errors_and_never_data(
    start: Start, store: DirectoryStore, store_path: Path, troubles: Troubles
) -> None:
    manifest = stored(IMAGE, store)
    random_bit = random.Random(7)
    changed = [number for number in range(CHUNKS) if manifest.chunks[number] and number % 3 == 1]
    for number in changed:
        path = chunk_path(store_path, manifest.chunks[number])
        flip_bit(path, random_bit.randrange(8 * path.stat().st_size))
    agent = await start()
    image = await agent.open(manifest)
    for number in range(CHUNKS):
        if number in changed:
            await fails_with_eio(image, number)
        else:
            assert await part(image, number) == right_part(number)
    assert {type(error) for _, error in troubles} == {Tampered}
    assert (await agent.counters())["failed_Tampered"] >= len(changed)


@case("I10", "delete a chunk from the store", expect="EIO and a typed error")
async def test_a_chunk_that_the_store_lost_is_an_error(
    start: Start, store: DirectoryStore, store_path: Path, troubles: Troubles
) -> None:
    manifest = stored(IMAGE, store)
    chunk_path(store_path, manifest.chunks[9]).unlink()
    path = await (await start()).open(manifest)
    await fails_with_eio(path, 9)
    assert await part(path, 10) == right_part(10)
    assert [type(error) for _, error in troubles] == [ChunkMissing]


@pytest.mark.usefixtures("resends")
@case("I11", "flip 200 bits of the L1 cache's file between two agents", expect="right bytes from the store")
async def test_bits_that_change_in_the_cache_while_no_agent_runs_are_not_served(
    start: Start, store: DirectoryStore, tmp_path: Path
) -> None:
    agent = await start()
    path = await agent.open(stored(IMAGE, store))
    assert await asyncio.to_thread(digest_of, path) == DIGEST
    cache = tmp_path / "agent" / "l1"
    size, random_bit = cache.stat().st_size, random.Random(3)
    with cache.open("r+b") as file:
        for _ in range(200):
            at = random_bit.randrange(CHUNK_BYTES, size)
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << random_bit.randrange(8)]))
    await kill(agent)
    assert await asyncio.to_thread(digest_of, path) == DIGEST
    assert (await agent.counters())["l1_rejected"] > 0


@pytest.mark.usefixtures("resends")
@case("I12", "delete the L1 cache's file while images are read", expect="right bytes")
async def test_images_are_read_on_after_the_cache_s_file_is_deleted(
    start: Start, store: DirectoryStore, tmp_path: Path
) -> None:
    agent = await start(l1_bytes=SMALL_CACHE)
    path = await agent.open(stored(IMAGE, store))
    assert await part(path, 1) == right_part(1)
    (tmp_path / "agent" / "l1").unlink()
    assert await asyncio.to_thread(digest_of, path) == DIGEST
    await kill(agent)
    assert await asyncio.to_thread(digest_of, path) == DIGEST


async def test_nothing_is_kept_of_closed_images(start: Start, store: DirectoryStore) -> None:
    agent = await start(standby=False)
    manifests = [stored(random_image(3, seed), store, f"image-{seed}") for seed in range(8)]
    await agent.open(manifests[0])
    [pid] = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()

    def held() -> tuple[int, int, int]:
        return (
            len(os.listdir("/proc/self/fd")),
            len(os.listdir(f"/proc/{pid}/fd")),
            len(os.listdir(f"/proc/{pid}/task")),
        )

    before = held()
    for _ in range(3):
        for manifest in manifests:
            assert len(await part(await agent.open(manifest), 0)) == 4096
            await agent.close(manifest.image)
    # A chunk that is read ahead has its file of the store open until it is there.
    while any(now > then for now, then in zip(held(), before, strict=True)):
        await agent.counters()


async def test_without_verification_changed_chunks_would_be_data(
    tmp_path: Path, store: DirectoryStore, store_path: Path
) -> None:
    """The case of changed chunks can fail."""
    manifest = stored(IMAGE, store)
    flip_bit(chunk_path(store_path, manifest.chunks[1]), 8 * 100_000)
    ours, *libraries = agent_link.places()
    copy = tmp_path / "copy" / "sockd"
    shutil.copytree(ours[0], copy)
    reader = copy / "images" / "chunks" / "directory_store.py"
    code = reader.read_text()
    check = "if not is_named(name, data):"
    assert check in code
    reader.write_text(code.replace(check, "if False:"))
    places = ((str(copy), ours[1]), *libraries)
    async with jail_at(tmp_path / "jail-of-the-copy", places) as jail:
        source = SourceSettings(store=StoreSettings(url=str(store_path)), l1_bytes=64 << 20)
        agent = await ImageAgent.start(jail, AgentSettings(uid=UID, source=source), tmp_path / "agent")
        try:
            assert await part(await agent.open(manifest), 1) != right_part(1)
        finally:
            await agent.aclose()
