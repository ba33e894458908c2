"""An agent with a process of its own, on a store that is a directory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from sockd.chunk_agent import agent_link
from sockd.chunk_agent.agent_link import AgentSettings
from sockd.chunk_agent.agent_wire import SourceSettings
from sockd.chunk_agent.image_agent import ImageAgent
from sockd.chunks.store_settings import StoreSettings
from sockd.plain.errors import SockdError
from sockd_initscripts.client.process import Ground
from tests.support.ground import ground_at

UID = 0x0FFFFE00
Start = Callable[..., Awaitable[ImageAgent]]


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with ground_at(tmp_path / "ground", agent_link.places()) as ground:
        yield ground


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    path.mkdir()
    return path


@pytest.fixture
def troubles() -> list[tuple[str, SockdError]]:
    """What agents have reported."""
    return []


@pytest.fixture
async def start(
    ground: Ground, store: Path, tmp_path: Path, troubles: list[tuple[str, SockdError]]
) -> AsyncIterator[Start]:
    """Starts an agent, which ends with the test. Keywords: of AgentSettings."""
    async with AsyncExitStack() as stack:

        async def started(**settings: Any) -> ImageAgent:
            source = SourceSettings(
                store=settings.pop("store", StoreSettings(url=str(store))), l1_bytes=settings.pop("l1_bytes", 64 << 20)
            )
            made = AgentSettings(uid=UID, source=source, **settings)
            agent = await ImageAgent.start(
                ground, made, tmp_path / "agent", lambda image, error: troubles.append((image, error))
            )
            stack.push_async_callback(agent.aclose)
            return agent

        yield started
