"""A daemon that has nothing but an agent of images, for tests that kill it.

    python -m tests.support.images.agent_daemon DIRECTORY CGROUP UID reader|thread

Prints {"launcher", "agent", "reader"} and waits. The reader is a process that reads an uncached image from a descriptor, as a
function does, and whose output is ours: the errno of its failure. Or it is the daemon itself, a thread of which waits for a chunk
that never comes, as one that mounts an image does: the store accepts connections, and is silent.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from sockd.images.agent.agent_wire import SourceSettings
from sockd.images.agent_keeper import agent_link
from sockd.images.agent_keeper.agent_link import AgentSettings
from sockd.images.agent_keeper.image_agent import ImageAgent
from sockd.images.chunks.chunk import CHUNK_BYTES
from sockd.images.chunks.directory_store import DirectoryStore
from sockd.images.chunks.store_settings import StoreSettings
from sockd.linux import mounts
from tests.support.images.chunked_images import random_image, read_at, stored
from tests.support.jail import jail_at

READER = """
import os, sys
fd, size = int(sys.argv[1]), int(sys.argv[2])
try:
    while True:
        for at in range(0, size, 4096):
            os.pread(fd, 4096, at)
except OSError as error:
    print(error.errno, flush=True)
"""
CHUNKS = 8


STALLED = 6
"""The chunk that never comes."""


async def main(directory: Path, cgroup: str, uid: int, who: str) -> None:
    """Start it all, and wait to be killed."""
    mounts.enter_private_namespace()
    store = DirectoryStore.create(directory / "store")
    image = random_image(CHUNKS)
    manifest = stored(image, store)
    async with jail_at(directory / "jail", agent_link.places(), cgroup) as jail:
        settings = StoreSettings(url=str(directory / "store")) if who == "reader" else silent_store()
        source = SourceSettings(store=settings, l1_bytes=32 << 20)
        agent = await ImageAgent.start(jail, AgentSettings(uid, source, stall_s=600), directory / "agent")
        path = await agent.open(manifest)
        file = await asyncio.to_thread(os.open, path, os.O_RDONLY)
        if who == "reader":
            command = [sys.executable, "-c", READER, str(file), str(len(image))]
            reader = subprocess.Popen(command, pass_fds=[file]).pid
        else:
            reader = os.getpid()
            threading.Thread(target=read_at, args=(path, STALLED * CHUNK_BYTES, 4096), daemon=True).start()
            while not (await agent.counters())["waiting_reads"]:
                await asyncio.sleep(0)
        [child] = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        print(json.dumps({"launcher": agent.pid, "agent": int(child), "reader": reader}), flush=True)
        await asyncio.get_running_loop().create_future()


def silent_store() -> StoreSettings:
    """One in S3, whose server the kernel accepts connections for; nobody ever reads from them."""
    listener = socket.create_server(("127.0.0.1", 0))
    endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.detach()  # as long as this process
    return StoreSettings(url="s3://bucket/chunks", endpoint=endpoint, access_key="a", secret_key="b", attempt_s=600.0)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]))
