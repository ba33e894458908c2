"""An agent with a process of its own, on a store in a directory or in S3."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.s3.client import Client
from benchmarks.s3.process import S3Process
from sockd.base.errors import SockdError
from sockd.images.agent.agent_wire import SourceSettings
from sockd.images.agent_keeper import agent_link
from sockd.images.agent_keeper.agent_link import AgentSettings
from sockd.images.agent_keeper.image_agent import ImageAgent
from sockd.images.chunks.directory_store import DirectoryStore
from sockd.images.chunks.store import ChunkStore
from sockd.images.chunks.store_settings import StoreSettings, open_store
from sockd.linux.confined.confined_process import Jail
from tests.images.agent_keeper.read_image import IMAGE, NOTHING_AHEAD, part
from tests.support.fuse import resends as resends
from tests.support.images.chunked_images import stored
from tests.support.images.startup_profiles import opened
from tests.support.jail import jail_at

UID = 0x0FFFFE00
Start = Callable[..., Awaitable[ImageAgent]]
Troubles = list[tuple[str, SockdError]]


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Process]:
    with S3Process() as process:
        yield process


@pytest.fixture
def s3_client(s3: S3Process) -> Iterator[Client]:
    """Without faults, and with an empty log."""
    with s3.client() as client:
        client.remove_faults()
        client.forget_requests()
        yield client


@pytest.fixture
def s3_settings(s3: S3Process, s3_client: Client) -> StoreSettings:
    """The settings of an empty bucket."""
    bucket = f"agent-{uuid.uuid4().hex[:12]}"
    s3_client.make_bucket(bucket)
    return StoreSettings(
        url=f"s3://{bucket}/images",
        endpoint=s3.url,
        access_key=s3.credentials.access_key,
        secret_key=s3.credentials.secret_key,
    )


@pytest.fixture
def s3_store(s3_settings: StoreSettings) -> Iterator[ChunkStore]:
    store = open_store(s3_settings)
    yield store
    store.close()


@pytest.fixture
async def jail(tmp_path: Path) -> AsyncIterator[Jail]:
    async with jail_at(tmp_path / "jail", agent_link.places()) as jail:
        yield jail


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(store_path: Path) -> Iterator[DirectoryStore]:
    store = DirectoryStore.create(store_path)
    yield store
    store.close()


@pytest.fixture
def troubles() -> Troubles:
    """What agents have reported."""
    return []


@pytest.fixture
async def start(
    jail: Jail, store_path: Path, store: DirectoryStore, tmp_path: Path, troubles: Troubles
) -> AsyncIterator[Start]:
    """Starts an agent, which ends with the test. Keywords: of AgentSettings and SourceSettings."""
    async with AsyncExitStack() as stack:

        async def started(
            store: StoreSettings | None = None,
            *,
            l1_bytes: int = 64 << 20,
            nodes: Sequence[str] = (),
            token: str = "",
            on_refused: Callable[[str], None] = lambda image: None,
            **settings: Any,
        ) -> ImageAgent:
            where = store or StoreSettings(url=str(store_path))
            source = SourceSettings(store=where, l1_bytes=l1_bytes, nodes={node: node for node in nodes}, token=token)
            agent = await ImageAgent.start(
                jail,
                AgentSettings(uid=UID, source=source, **settings),
                tmp_path / "agent",
                lambda image, error: troubles.append((image, error)),
                on_refused,
            )
            stack.push_async_callback(agent.aclose)
            return agent

        yield started


@pytest.fixture
async def one_chunk_read(
    start: Start, s3_settings: StoreSettings, s3_store: ChunkStore, s3_client: Client
) -> tuple[ImageAgent, str]:
    """An agent that waits for its store, and the path of an image of which it has fetched the first chunk alone."""
    manifest = await asyncio.to_thread(stored, IMAGE, s3_store)
    agent = await start(s3_settings, stall_s=600.0)
    path = await agent.open(manifest, opened(manifest, NOTHING_AHEAD))
    await part(path, 0)
    await asyncio.to_thread(s3_client.forget_requests)
    return agent, path
