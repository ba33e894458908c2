"""A TLS connection given to an app: the engine goes on speaking TLS, the app gets a plain stream.

Keys and record counters cannot be handed to another process (the kernel's TLS is rarely there, and renewed keys would
break it), so bytes pass through here, a bounded number of them at a time. Ends with either side: TLS has no half-close
that peers agree on. Owns both transports until then.
"""

from __future__ import annotations

import asyncio
import socket

from sockd_initscripts.rpc.http1.http_stream import HttpStream
from sockd_initscripts.rpc.http1.pool import ConnectionPool

_BUFFERED_BYTES = 256 * 1024


async def relay(stream: HttpStream, pool: ConnectionPool) -> socket.socket:
    """The app's end, blocking. `stream` is idle and now used up; the pool knows both transports while they are open."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    try:
        to_peer, to_app = _End(pool), _End(pool)
        to_peer.other, to_app.other = to_app, to_peer
        ours.setblocking(False)
        await loop.create_unix_connection(lambda: to_app, sock=ours)
    except BaseException:
        ours.close()
        theirs.close()
        stream.abort()
        raise
    to_peer.connection_made(stream.transport)
    if stream.closed:  # while we waited: the new protocol would not learn of it
        to_peer.connection_lost(None)
    else:
        stream.hand_over(to_peer)
    return theirs


class _End(asyncio.Protocol):
    """What comes in here goes out at the other."""

    other: _End
    transport: asyncio.Transport

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        transport.set_write_buffer_limits(_BUFFERED_BYTES)
        self._pool.relay_made(transport)

    def data_received(self, data: bytes) -> None:
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.relay_lost(self.transport)
        self.other.close()

    def close(self) -> None:
        """Send what is buffered, then end."""
        self.transport.close()
