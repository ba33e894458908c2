"""The least that a read of a chunk from cache nodes can be: stripes from four processes, their digest and their decryption.

    python -m benchmarks.peers.stripe_floor STRIPE_BYTES     prints its address; ends when its client does

A server sends one stripe for each byte that it receives. It knows no names, heads, parity or lost servers.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from blake3 import blake3
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

_BUFFER_BYTES = 512 << 10
_ASK = b"\0"


class StripeFloor:
    """The client."""

    def __init__(self, servers: Sequence[socket.socket], stripe_bytes: int) -> None:
        self._servers = servers
        self._chunk = bytearray(len(servers) * stripe_bytes)
        view = memoryview(self._chunk)
        self._places = [view[start : start + stripe_bytes] for start in range(0, len(view), stripe_bytes)]

    def read(self, count: int) -> list[float]:
        """Milliseconds of each read."""
        key = bytes(32)
        times = []
        for _ in range(count):
            begun = time.perf_counter()
            for server in self._servers:
                server.send(_ASK)
            for server, place in zip(self._servers, self._places, strict=True):
                _receive(server, place)
            blake3(self._chunk).digest()
            Cipher(AES(key), CTR(bytes(16))).encryptor().update(self._chunk)
            times.append((time.perf_counter() - begun) * 1000)
        return times


@contextmanager
def connected(addresses: Sequence[str], stripe_bytes: int) -> Iterator[StripeFloor]:
    """A client of these servers."""
    with ExitStack() as stack:
        servers = []
        for address in addresses:
            host, port = address.rsplit(":", 1)
            server = stack.enter_context(socket.socket())
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server.connect((host, int(port)))
            servers.append(server)
        yield StripeFloor(servers, stripe_bytes)


def _receive(server: socket.socket, place: memoryview) -> None:
    while place:
        received = server.recv_into(place)
        if not received:
            raise ConnectionResetError("a server of stripes has ended")
        place = place[received:]


def serve(stripe_bytes: int) -> None:
    """Serve one client until it ends."""
    stripe = os.urandom(stripe_bytes)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"stripe floor on 127.0.0.1:{listening.getsockname()[1]}", flush=True)
        client, _ = listening.accept()
    with client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        while client.recv(1):
            client.sendall(stripe)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
