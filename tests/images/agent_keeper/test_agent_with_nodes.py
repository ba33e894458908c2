"""The agent with cache nodes: another worker's reads are served by them, and their end by the store."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sockd.images.chunks.directory_store import DirectoryStore
from tests.images.agent_keeper.conftest import Start
from tests.support.cases import case
from tests.support.images.cache_nodes import CacheNode, addresses, cache_nodes
from tests.support.images.chunked_images import digest_of, random_image, stored

CHUNKS = 20
IMAGE = random_image(CHUNKS)
DIGEST = hashlib.sha256(IMAGE).hexdigest()

pytestmark = [pytest.mark.root, pytest.mark.anyio]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[CacheNode]]:
    (tmp_path / "token").write_text("secret\n")
    with cache_nodes(5, "--token-file", str(tmp_path / "token")) as nodes:
        yield nodes


async def test_what_one_worker_has_read_others_read_from_the_nodes(
    start: Start, store: DirectoryStore, nodes: list[CacheNode], tmp_path: Path
) -> None:
    manifest = stored(IMAGE, store)
    chunks = len(set(manifest.chunks) - {None})
    agent = await start(nodes=addresses(nodes), token="secret")
    assert await asyncio.to_thread(digest_of, await agent.open(manifest)) == DIGEST
    assert (await agent.counters())["origin_fetches"] == chunks
    await asyncio.to_thread(wait_for_stripes, nodes, 5 * chunks)
    await agent.aclose()
    (tmp_path / "agent" / "l1").unlink()
    other = await start(nodes=addresses(nodes), token="secret")
    assert await asyncio.to_thread(digest_of, await other.open(manifest)) == DIGEST
    counted = await other.counters()
    assert counted["l2_fetches"] + counted["origin_fetches"] == chunks
    assert counted["l2_fetches"] >= chunks // 2  # on a busy machine nodes may answer later than a read waits


def wait_for_stripes(nodes: list[CacheNode], count: int) -> None:
    """Until the nodes have taken as many."""
    while sum(puts(each) for each in nodes) < count:
        pass


def puts(node: CacheNode) -> int:
    with closing(http.client.HTTPConnection(node.address)) as connection:
        connection.request("GET", "/status", headers={"Authorization": "Bearer secret"})
        taken: int = json.loads(connection.getresponse().read())["puts"]
    return taken


@case("I20", "SIGKILL all cache nodes while an image is read through them", expect="right bytes, from the store")
async def test_nodes_that_are_killed_cost_no_read(start: Start, store: DirectoryStore, nodes: list[CacheNode]) -> None:
    agent = await start(nodes=addresses(nodes), token="secret")
    path = await agent.open(stored(IMAGE, store))
    reader = asyncio.ensure_future(asyncio.to_thread(digest_of, path))
    for each in nodes:
        each.kill()
    assert await reader == DIGEST


async def test_the_list_of_nodes_changes_while_an_image_is_read_and_for_the_next_process(
    start: Start, store: DirectoryStore, nodes: list[CacheNode]
) -> None:
    manifest = stored(IMAGE, store)
    chunks = len(set(manifest.chunks) - {None})
    agent = await start(token="secret")
    path = await agent.open(manifest)
    reader = asyncio.ensure_future(asyncio.to_thread(digest_of, path))
    agent.use_nodes({f"w{number}": each.address for number, each in enumerate(nodes)})
    assert await reader == DIGEST
    await agent.close(manifest.image)
    other = random_image(CHUNKS, seed=2)
    os.kill(agent.pid, signal.SIGKILL)
    assert (
        await asyncio.to_thread(digest_of, await agent.open(stored(other, store))) == hashlib.sha256(other).hexdigest()
    )
    await asyncio.to_thread(wait_for_stripes, nodes, 5 * chunks)
    assert (await agent.counters())["agent_starts"] == 2
