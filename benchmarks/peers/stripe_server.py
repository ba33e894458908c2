"""A cache node's stand-in that answers some reads late: any HTTP server that stores what it is sent can be a node.

    python -m benchmarks.peers.stripe_server SHARE DELAY_MS SEED     prints its address; ends when stdin does

PUT stores a body under its path, GET returns it; SHARE of the answers to GET are DELAY_MS late.
"""

from __future__ import annotations

import asyncio
import random
import sys
from typing import cast

import uvloop

_BUFFER_BYTES = 512 << 10


class StripeServer(asyncio.Protocol):
    """One connection; a request at a time."""

    stored: dict[bytes, bytes]
    share: float
    delay_s: float
    draw: random.Random

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_BUFFER_BYTES)
        self._received = bytearray()

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._received[:end])
        method, path, _ = head.split(b"\r\n")[0].split(b" ")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
        if len(self._received) < end + 4 + length:
            return
        body = bytes(self._received[end + 4 : end + 4 + length])
        self._received.clear()
        if method == b"PUT":
            self.stored[path] = body
            self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        elif self.draw.random() < self.share:
            asyncio.get_running_loop().call_later(self.delay_s, self._answer, path)
        else:
            self._answer(path)

    def _answer(self, path: bytes) -> None:
        body = self.stored.get(path)
        status = "404 Not Found" if body is None else "200 OK"
        self._transport.writelines(
            [f"HTTP/1.1 {status}\r\nContent-Length: {len(body or b'')}\r\n\r\n".encode(), body or b""]
        )


async def main(share: float, delay_ms: float, seed: int) -> None:
    loop = asyncio.get_running_loop()
    StripeServer.stored, StripeServer.share, StripeServer.delay_s = {}, share, delay_ms / 1000
    StripeServer.draw = random.Random(seed)
    server = await loop.create_server(StripeServer, "127.0.0.1", 0)
    print(f"stripe server on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin, ended.set)
    await ended.wait()


if __name__ == "__main__":
    uvloop.run(main(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
