"""Images through the agent's process: files that EROFS mounts, read on when the process ends."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
import signal
from pathlib import Path

import pytest

from benchmarks.s3.client import Client
from sockd.base.errors import StorageFull, Tampered
from sockd.base.file_tree import FileTree
from sockd.images.chunks.chunk import CHUNK_BYTES
from sockd.images.chunks.directory_store import DirectoryStore
from sockd.images.chunks.store import ChunkStore
from sockd.images.chunks.store_settings import StoreSettings
from sockd.images.profiles.profile import Profile
from sockd.linux import mounts
from sockd.linux.erofs.mounting import mount_image
from tests.images.agent_keeper.conftest import Start
from tests.support.images.chunked_images import chunk_path, digest_of, flip_bit, random_image, read_at, stored
from tests.support.images.image_files import (
    Facts,
    Layers,
    directory,
    facts_of_directory,
    facts_of_tree,
    symlink,
    written,
)
from tests.support.images.startup_profiles import opened

CHUNKS = 40
IMAGE = random_image(CHUNKS)
DIGEST = hashlib.sha256(IMAGE).hexdigest()


def a_tree(layers: Layers) -> FileTree:
    """Files of several chunks, small ones, and one of zeros."""
    source = random.Random(5)
    tree = {"": directory(), "etc": directory(), "lib": directory(), "lib/link": symlink("0.so")}
    tree |= {f"etc/{number}": layers.file(source.randbytes(source.randrange(9000))) for number in range(300)}
    tree |= {f"lib/{number}.so": layers.file(source.randbytes(source.randrange(3 << 20))) for number in range(12)}
    return tree | {"lib/zeros": layers.file(bytes(5 << 20))}


def facts_of_mount(path: str) -> dict[str, Facts]:
    """In a thread: the mount and each read wait for the agent."""
    mount = mount_image(path)
    try:
        return facts_of_directory(Path(f"/proc/self/fd/{mount}"))
    finally:
        os.close(mount)


@pytest.mark.root
@pytest.mark.anyio
async def test_an_image_is_a_file(start: Start, store: DirectoryStore) -> None:
    agent = await start()
    path = await agent.open(stored(IMAGE, store))
    assert await asyncio.to_thread(digest_of, path) == DIGEST
    assert (await asyncio.to_thread(os.stat, path)).st_size == len(IMAGE)


@pytest.mark.root
@pytest.mark.anyio
async def test_a_link_in_the_place_of_the_cache_is_not_followed(
    start: Start, store: DirectoryStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "other"
    other.write_text("somebody's")
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "l1").symlink_to(other)
    agent = await start()
    path = await agent.open(stored(IMAGE, store))
    assert await asyncio.to_thread(digest_of, path) == DIGEST
    assert other.read_text() == "somebody's"
    assert "the cache of chunks is not used, remove" in caplog.text


@pytest.mark.root
@pytest.mark.anyio
async def test_erofs_on_an_image_shows_the_files_it_was_made_from(start: Start, store: DirectoryStore) -> None:
    layers = Layers()
    tree = a_tree(layers)
    agent = await start()
    path = await agent.open(stored(written(tree, layers), store))
    found = await asyncio.to_thread(facts_of_mount, path)
    wanted = facts_of_tree(tree, layers)
    assert found.keys() == wanted.keys()
    assert {name: each.data for name, each in found.items()} == {name: each.data for name, each in wanted.items()}


@pytest.mark.root
@pytest.mark.anyio
@pytest.mark.usefixtures("resends")
async def test_readers_go_on_when_the_agent_is_killed(start: Start, store: DirectoryStore) -> None:
    agent = await start()
    path = await agent.open(stored(IMAGE, store))
    for _ in range(3):
        reader = asyncio.ensure_future(asyncio.to_thread(digest_of, path))
        os.kill(agent.pid, signal.SIGKILL)
        assert await reader == DIGEST
        await agent.counters()  # waits for the next process
    assert agent.starts == 4


@pytest.mark.root
@pytest.mark.anyio
async def test_the_chunks_that_a_start_used_are_prefetched_at_the_next(
    start: Start, s3_settings: StoreSettings, s3_store: ChunkStore, s3_client: Client, tmp_path: Path
) -> None:
    manifest = await asyncio.to_thread(stored, IMAGE, s3_store)
    agent = await start(s3_settings)
    path = await agent.open(manifest)
    for number in (8, 30, 21, 8, 9):
        await asyncio.to_thread(read_at, path, number * CHUNK_BYTES + 5000, 4096)
    profile = await agent.profile(manifest, 0)
    assert profile == Profile((8, 30, 21, 9))
    await agent.close("image")
    (tmp_path / "agent" / "l1").unlink()
    other = await start(s3_settings)
    await asyncio.to_thread(s3_client.forget_requests)
    await other.open(manifest, opened(manifest, profile))
    requests = await asyncio.to_thread(s3_client.requests, at_least=5)
    wanted = {manifest.chunks[number] for number in (0, *profile.order)}
    assert {name for each in requests if (name := each["path"].rpartition("/")[2])} == {
        chunk.name.hex() for chunk in wanted if chunk
    }


@pytest.mark.root
@pytest.mark.anyio
async def test_an_idle_agent_fetches_the_rest(
    start: Start, s3_settings: StoreSettings, s3_store: ChunkStore, s3_client: Client
) -> None:
    manifest = await asyncio.to_thread(stored, IMAGE, s3_store)
    agent = await start(s3_settings, fill_bytes_s=1 << 30)
    await asyncio.to_thread(s3_client.forget_requests)
    path = await agent.open(manifest)
    await asyncio.to_thread(s3_client.requests, at_least=len(set(manifest.chunks)) - 1)
    while (await agent.counters())["l1_chunks"] < len(set(manifest.chunks)) - 1:
        await asyncio.sleep(0)
    await asyncio.to_thread(s3_client.inject, status=503)
    assert await asyncio.to_thread(digest_of, path) == DIGEST


@pytest.mark.root
@pytest.mark.anyio
async def test_an_open_image_goes_on_with_the_chunks_of_another_root(
    start: Start, store: DirectoryStore, store_path: Path
) -> None:
    agent = await start(l1_bytes=20 * CHUNK_BYTES)
    path = await agent.open(stored(IMAGE, store))
    await asyncio.to_thread(read_at, path, 0, 4096)
    await agent.switch(stored(IMAGE, store, root="r2", salt=b"another"))
    shutil.rmtree(store_path / "roots" / "r1")
    assert await asyncio.to_thread(digest_of, path) == DIGEST


@pytest.mark.root
@pytest.mark.anyio
async def test_without_fuse_images_are_written_whole(start: Start, store: DirectoryStore, store_path: Path) -> None:
    agent = await start(on_demand=False)
    manifest = stored(IMAGE, store)
    first, second = await asyncio.gather(agent.open(manifest), agent.open(manifest))
    assert first == second and digest_of(first) == DIGEST
    shutil.rmtree(store_path)
    await agent.close("image")
    assert digest_of(await agent.open(manifest)) == DIGEST, "from its file"
    await agent.close("image")
    await agent.close("image")
    assert not os.path.exists(first)


@pytest.mark.root
@pytest.mark.anyio
async def test_a_whole_image_that_the_disk_has_no_room_for_says_so(
    start: Start, store: DirectoryStore, tmp_path: Path
) -> None:
    (tmp_path / "agent").mkdir()
    mounts.mount_tmpfs(str(tmp_path / "agent"), size_bytes=len(IMAGE) // 2)
    try:
        agent = await start(on_demand=False)
        words = "disk of the state directory is full; an image of 19 MB .*images.on_demand is off.*set images.on_demand = true"
        with pytest.raises(StorageFull, match=words):
            await agent.open(stored(IMAGE, store))
        assert [entry.name for entry in (tmp_path / "agent").iterdir()] == ["l1"]
        await agent.aclose()
    finally:
        mounts.umount_tree(str(tmp_path / "agent"))


@pytest.mark.root
@pytest.mark.anyio
async def test_a_whole_image_with_a_wrong_chunk_is_refused(
    start: Start, store: DirectoryStore, store_path: Path, tmp_path: Path
) -> None:
    manifest = stored(IMAGE, store)
    flip_bit(chunk_path(store_path, manifest.chunks[20]), 12345)
    agent = await start(on_demand=False)
    with pytest.raises(Tampered):
        await agent.open(manifest)
    assert [entry.name for entry in (tmp_path / "agent").iterdir()] == ["l1"]
