"""Nameservers: a query to those of the host, one after the other, over UDP, and over TCP where the answer is larger.

Owns the sockets of a query until it is answered. Interprets no records.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Sequence

from sockd.isolation.networks import dns

PORT = 53
TRY_S, TRIES = 2.0, 2
"""How long a nameserver may take, over TCP included, and how often each is asked."""
MOST_ANSWER_BYTES = 16 << 10
"""Over TCP: some 1000 addresses. Parsing more would delay the queries of others."""
_MOST_DATAGRAM_BYTES = 4096
"""More than a query asks for (`dns.MOST_MESSAGE_BYTES`); a larger datagram is cut, and its answer is not understood."""


class Nameservers:
    """`ask`."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._loop = asyncio.get_running_loop()

    async def ask(self, name: str, kind: int) -> bytes | None:
        """The first answer, complete and with the code of the nameserver; None: there is none."""
        for _ in range(TRIES):
            for address in self._addresses:
                with contextlib.suppress(OSError, EOFError):  # TimeoutError is an OSError
                    async with asyncio.timeout(TRY_S):
                        return await self._ask(address, name, kind)
        return None

    async def _ask(self, address: str, name: str, kind: int) -> bytes:
        """Raises: OSError, EOFError."""
        number = random.SystemRandom().randrange(1 << 16)
        message = await self._over_udp(address, dns.query(number, name, kind))
        if dns.is_truncated(message):
            message = await self._over_tcp(address, dns.query(number, name, kind))
        return message

    async def _over_udp(self, address: str, query: bytes) -> bytes:
        with _socket(address, socket.SOCK_DGRAM) as sock:
            sock.connect((address, PORT))
            await self._loop.sock_sendall(sock, query)
            while True:
                message = await self._loop.sock_recv(sock, _MOST_DATAGRAM_BYTES)
                if dns.is_answer(message, query):
                    return message

    async def _over_tcp(self, address: str, query: bytes) -> bytes:
        """One message each way, behind its length (RFC 7766)."""
        with _socket(address, socket.SOCK_STREAM) as sock:
            await self._loop.sock_connect(sock, (address, PORT))
            await self._loop.sock_sendall(sock, len(query).to_bytes(2) + query)
            size = int.from_bytes(await self._received(sock, 2))
            if size > MOST_ANSWER_BYTES:
                raise OSError(f"an answer of {size} bytes")
            message = await self._received(sock, size)
        if not dns.is_answer(message, query) or dns.is_truncated(message):
            raise OSError("not an answer to the query")
        return message

    async def _received(self, sock: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = await self._loop.sock_recv(sock, size - len(data))
            if not more:
                raise EOFError
            data += more
        return data


def _socket(address: str, kind: int) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind | socket.SOCK_NONBLOCK)
