"""The process of a worker's own cache node: stripes in memory, served at a socket that the daemon has bound.

    python -m sockd.images.caches.listening_node WIRE_FD

The daemon sends one message with the socket: {"memory_bytes", "token"}. The token is in no argument, which other users can read.
The process has no key, no capability and no file, and ends with the daemon.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys

from sockd.images.caches.node_server import NodeServer
from sockd.images.caches.node_store import NodeStore
from sockd.images.caches.slab import CORRELATED_S
from sockd.images.chunks.chunk import CHUNK_BYTES
from sockd.linux import descriptor_passing
from sockd.linux.event_loop import EventLoop

MOST_MESSAGE_BYTES = 4096


def main(wire_fd: int) -> None:
    """Serve until it is killed."""
    with socket.socket(fileno=wire_fd) as wire:
        data, descriptors = descriptor_passing.receive(wire, MOST_MESSAGE_BYTES, 1)
        if not data:
            return  # the daemon ended while this process started
        with asyncio.Runner(loop_factory=EventLoop) as runner:
            runner.run(_serve(socket.socket(fileno=descriptors[0]), **json.loads(data)))


async def _serve(listening: socket.socket, memory_bytes: int, token: str) -> None:
    store = NodeStore.open(memory_bytes, None, 0, chunk_bytes=CHUNK_BYTES, correlated_s=CORRELATED_S)
    server = NodeServer(store, chunk_bytes=CHUNK_BYTES, token=token)
    try:
        await server.start_on(listening)
        await asyncio.Event().wait()
    finally:
        await server.aclose()


if __name__ == "__main__":
    main(int(sys.argv[1]))
