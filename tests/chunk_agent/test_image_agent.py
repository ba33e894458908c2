"""Images through the agent's process: files that EROFS mounts, read on when the process ends."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
from pathlib import Path

import pytest

from sockd.erofs.mounting import mount_image
from sockd.plain.file_tree import FileTree
from tests.chunk_agent.conftest import Start
from tests.support.chunked_images import digest_of, random_image, stored
from tests.support.image_files import Facts, Layers, directory, facts_of_directory, facts_of_tree, symlink, written

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
async def test_an_image_is_a_file(start: Start, store: Path) -> None:
    agent = await start()
    path = await agent.open(stored(IMAGE, store))
    assert await asyncio.to_thread(digest_of, path) == DIGEST
    assert (await asyncio.to_thread(os.stat, path)).st_size == len(IMAGE)


@pytest.mark.root
@pytest.mark.anyio
async def test_erofs_on_an_image_shows_the_files_it_was_made_from(start: Start, store: Path) -> None:
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
async def test_readers_go_on_when_the_agent_is_killed(start: Start, store: Path) -> None:
    agent = await start()
    path = await agent.open(stored(IMAGE, store))
    for _ in range(3):
        reader = asyncio.ensure_future(asyncio.to_thread(digest_of, path))
        os.kill(agent.pid, signal.SIGKILL)
        assert await reader == DIGEST
        await agent.counters()  # waits for the next process
    assert agent.starts == 4
