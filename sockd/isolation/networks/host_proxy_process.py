"""The host proxy's process: connects functions to ports of the host's loopback. Exec'd unprivileged, with nothing of the host but
its network.

    python -m sockd.isolation.networks.host_proxy_process FD PORT [FD PORT]...

Each descriptor is a socket that listens in the router's namespace, on the address that sandboxes have as their gateway. The
router's rules decide who reaches it. A connection to it is connected to the port of the same number on 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections import Counter
from functools import partial

MOST_CONNECTIONS = 512
"""The most connections of all sandboxes; one more is reset."""
MOST_OF_ONE_SOURCE = 64
CONNECT_S = 5.0
BUFFER_BYTES = 8 << 10
"""The bytes that are buffered in each direction: all connections together stay within the memory of the process
(`host_proxy.MEMORY_BYTES`)."""
_LOOPBACK = "127.0.0.1"


class HostProxy:
    """Connections of all ports; `serve` each of them."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()

    async def serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect one connection of a sandbox to a port of the host, until both directions have ended."""
        source = writer.get_extra_info("peername")[0]
        if self._of[source] >= MOST_OF_ONE_SOURCE or self._of.total() >= MOST_CONNECTIONS:
            _reset(writer)
            return
        self._of[source] += 1
        try:
            await _connect(port, reader, writer)
        finally:
            self._of[source] -= 1
            if not self._of[source]:
                del self._of[source]


async def _connect(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        async with asyncio.timeout(CONNECT_S):
            host_reader, host_writer = await asyncio.open_connection(_LOOPBACK, port, limit=BUFFER_BYTES)
    except OSError:  # TimeoutError is one
        _reset(writer)
        return
    both = [writer, host_writer]
    try:
        async with asyncio.TaskGroup() as copying:
            copying.create_task(_copy(reader, host_writer))
            copying.create_task(_copy(host_reader, writer))
    except* OSError:
        for each in both:
            _reset(each)
    finally:
        for each in both:
            each.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction to its end. Raises: OSError."""
    while data := await reader.read(BUFFER_BYTES):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection so that its other end sees a reset, and not the end of an answer."""
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def main() -> None:
    """Serve until the process is ended."""
    os.nice(5)  # requests come first
    proxy = HostProxy()
    for fd, port in zip(map(int, sys.argv[1::2]), map(int, sys.argv[2::2]), strict=True):
        await asyncio.start_server(partial(proxy.serve, port), sock=socket.socket(fileno=fd), limit=BUFFER_BYTES)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
