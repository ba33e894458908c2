"""A worker's own cache node: it is confined, and another process continues at the same address."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import time
from contextlib import closing
from pathlib import Path

import pytest
from blake3 import blake3

from sockd.images.agent_keeper.cache_node import CacheNode
from sockd.images.caches.l2_client import L2Client
from sockd.images.caches.stripes import STRIPES
from sockd.linux.confined.confined_process import Jail

UID = 70007
CHUNK = random.Random(1).randbytes(1000)
NAME = blake3(CHUNK).digest()

pytestmark = [pytest.mark.root, pytest.mark.anyio]


async def test_another_process_continues_at_the_address_of_one_that_ended(jail: Jail) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    node = CacheNode(jail, UID, listening, memory_bytes=8 << 20, token="secret")
    try:
        await stored(address)
        (first,) = processes(UID)
        status = Path(f"/proc/{first}/status").read_text()
        assert "CapEff:\t0000000000000000" in status and "Seccomp:\t2" in status
        assert b"secret" not in Path(f"/proc/{first}/cmdline").read_bytes()
        with closing(L2Client([address])) as stranger:
            assert await asyncio.to_thread(stranger.put, NAME, CHUNK) == 0, "it has no token"
        os.kill(first, signal.SIGKILL)
        await stored(address)
        assert processes(UID) != [first]
    finally:
        await node.aclose()
    ends = time.monotonic() + 60
    while processes(UID) or is_open(address):  # the launcher has ended, and the kernel kills the node
        assert time.monotonic() < ends


def is_open(address: str) -> bool:
    """Return whether a process listens at an address."""
    host, _, port = address.rpartition(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0


async def stored(address: str) -> None:
    """Wait until a node takes a chunk, and check that it has it."""
    ends = time.monotonic() + 60
    with closing(L2Client([address], token="secret", deadline_s=5)) as client:
        while await asyncio.to_thread(client.put, NAME, CHUNK) < STRIPES:
            assert time.monotonic() < ends
        assert await asyncio.to_thread(client.get, NAME) == CHUNK


def processes(uid: int) -> list[int]:
    """Return the pids of a user's processes that run a module of the node."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() and entry.stat().st_uid == uid else b""
            if b"listening_node" in command and b"launcher" not in command:
                found.append(int(entry.name))
        except OSError:
            continue
    return found
