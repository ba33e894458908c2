"""A cache node: stores stripes of chunks for the workers of a network.

    python -m sockd.images.caches.node --listen HOST:PORT [--memory-mb N] [--dir DIR --disk-mb N] [--token-file FILE]

It prints one line with its address when it listens, and ends with SIGTERM or SIGINT. Stripes in DIR outlive it.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sockd.base.errors import SockdError
from sockd.images.caches.node_server import MOST_CONNECTIONS, NodeServer
from sockd.images.caches.node_store import NodeStore
from sockd.images.caches.slab import CORRELATED_S
from sockd.images.chunks.chunk import CHUNK_BYTES
from sockd.linux.event_loop import EventLoop

MB = 1 << 20
MEMORY_MB = 512
DISK_MB = 4096


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What a node is started with."""

    host: str
    port: int
    memory_mb: int = MEMORY_MB
    directory: Path | None = None
    disk_mb: int = DISK_MB
    token: str = ""
    connections: int = MOST_CONNECTIONS
    correlated_s: float = CORRELATED_S


def run_node(settings: NodeSettings, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT.

    Args: announce: called with the address once the node listens.

    Raises: HostFailed, BadConfig: of the file tier; OSError."""
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(_serve(settings, announce))


async def _serve(settings: NodeSettings, announce: Callable[[str], None]) -> None:
    store = NodeStore.open(
        settings.memory_mb * MB,
        settings.directory,
        settings.disk_mb * MB,
        chunk_bytes=CHUNK_BYTES,
        correlated_s=settings.correlated_s,
    )
    server = NodeServer(store, chunk_bytes=CHUNK_BYTES, token=settings.token, most_connections=settings.connections)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        host, port = await server.start(settings.host, settings.port)
        announce(f"{host}:{port}")
        await stopped.wait()
    finally:
        await server.aclose()


def parse_address(text: str) -> tuple[str, int]:
    """Host and port. Raises: ValueError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host, int(port)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m sockd.images.caches.node", description="Run a cache node.")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", type=parse_address)
    parser.add_argument("--memory-mb", type=int, default=MEMORY_MB)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--disk-mb", type=int, default=DISK_MB)
    parser.add_argument("--token-file", type=Path, help="its first line is what each request must have")
    parser.add_argument("--connections", type=int, default=MOST_CONNECTIONS)
    given = parser.parse_args()
    token = given.token_file.read_text().split("\n", 1)[0].strip() if given.token_file else ""
    host, port = given.listen
    settings = NodeSettings(host, port, given.memory_mb, given.dir, given.disk_mb, token, given.connections)
    try:
        run_node(settings, lambda address: print(f"cache node on {address}", flush=True))
    except (SockdError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
