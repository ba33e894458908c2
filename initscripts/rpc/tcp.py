"""`tcp://`: requests and replies of services that speak neither HTTP nor gRPC.

The method says where a reply ends: "bytes:N", "line" (its newline is part of it), "u32be" (a length before it, which is
stripped; the request is sent as it is), "eof". One RPC at a time goes over a connection; others wait for their turn.
Nothing is kept for other runs: the state of a conversation is not known here. Owns its socket.
"""

from __future__ import annotations

import asyncio
import re
import socket
from typing import Literal

from sockd_initscripts.region import Region
from sockd_initscripts.rpc.base import (
    Body,
    Connection,
    Reply,
    ReplyBuffer,
    RpcTiming,
    busy,
    malformed,
    monotonic_ns,
    reset,
)
from sockd_initscripts.rpc.dialing.addresses import Origin
from sockd_initscripts.rpc.dialing.dialing import connect, within
from sockd_initscripts.rpc.dialing.policy import EndpointPolicy
from sockd_initscripts.rpc.limits import RpcLimits

_FRAMING = re.compile(r"bytes:([1-9][0-9]{0,14})|line|u32be|eof")
_READ_BYTES = 64 * 1024


class TcpConnection(Connection):
    """One TCP connection."""

    def __init__(self, address: str, dial: asyncio.Future[socket.socket], limits: RpcLimits) -> None:
        super().__init__(address)
        self._limits = limits
        self._dial: asyncio.Future[socket.socket] | None = dial
        """Until somebody has taken its socket."""
        self._turn = asyncio.Lock()
        self._sock: socket.socket | None = None
        self._ahead = bytearray()
        """What came behind the last reply; the next one begins with it."""
        self._broken = False
        dial.add_done_callback(_retrieve)

    @classmethod
    def dialling(cls, address: str, origin: Origin, policy: EndpointPolicy, limits: RpcLimits) -> TcpConnection:
        """Connects in the background."""
        return cls(address, asyncio.get_running_loop().create_task(_connect(origin, policy, limits)), limits)

    @classmethod
    def adopting(cls, address: str, sock: socket.socket, limits: RpcLimits) -> TcpConnection:
        """Goes on with a connection that somebody else made; takes the socket over."""
        sock.setblocking(False)
        ready: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
        ready.set_result(sock)
        return cls(address, ready, limits)

    async def call(self, method: str, body: Body, region: Region, timing: RpcTiming) -> Reply:
        framing = _FRAMING.fullmatch(method)
        if framing is None:
            raise malformed(f"{method[:80]!r} is none of bytes:N, line, u32be, eof")
        with ReplyBuffer(region) as reply_buffer:
            async with self._turn:
                sock = await self._connected()
                exchange = _Exchange(sock, self._ahead, reply_buffer, timing, self._limits)
                self._broken = True  # until the reply is whole: what is left of it would be the next one's
                await exchange.send(bytes(body))
                await exchange.receive(method, int(framing[1] or 0))
                self._broken = method == "eof"
        return Reply(0, reply_buffer.buffer)

    async def detach(self) -> tuple[socket.socket, Literal["tcp", "relay"]]:
        if self._turn.locked():
            raise busy(f"an RPC to {self.address} is under way")
        async with self._turn:
            sock = await self._connected()
            if self._ahead:
                raise busy(f"{len(self._ahead)} bytes from {self.address} have been read already")
            self._broken, self._sock = True, None
        sock.setblocking(True)
        return sock, "tcp"

    def close(self) -> None:
        self._broken = True
        dial, self._dial = self._dial, None
        if dial is not None and not dial.cancel() and not dial.cancelled() and dial.exception() is None:
            self._sock = dial.result()
        if self._sock is not None:
            self._sock.close()

    async def _connected(self) -> socket.socket:
        if self._broken:
            raise reset(f"the connection to {self.address} is used up")
        if self._dial is not None:
            self._sock = await self._dial
            self._dial = None
        assert self._sock is not None
        return self._sock


class _Exchange:
    """One request and its reply."""

    def __init__(
        self, sock: socket.socket, ahead: bytearray, reply_buffer: ReplyBuffer, timing: RpcTiming, limits: RpcLimits
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._ahead = ahead
        self._reply_buffer = reply_buffer
        self._timing = timing
        self._limits = limits

    async def send(self, request: bytes) -> None:
        async with within(self._limits.silence_s, "sending"):
            await self._loop.sock_sendall(self._sock, request)
        self._timing.sent_ns = monotonic_ns()

    async def receive(self, framing: str, length: int) -> None:
        if framing == "line":
            await self._until_newline()
        elif framing == "eof":
            await self._until_end()
        else:
            if framing == "u32be":
                prefix = bytearray(4)
                await self._fill(memoryview(prefix))
                length = int.from_bytes(prefix, "big")
            if length:
                await self._fill(self._reply_buffer.allocate(length))
        self._timing.done_ns = monotonic_ns()
        self._timing.bytes = self._reply_buffer.buffer.length if self._reply_buffer.buffer else 0

    async def _fill(self, view: memoryview) -> None:
        filled = min(len(view), len(self._ahead))
        view[:filled] = self._ahead[:filled]
        del self._ahead[:filled]
        while filled < len(view):
            filled += await self._read(view[filled:]) or self._ended()

    async def _until_newline(self) -> None:
        chunk = bytearray(_READ_BYTES)
        while (end := self._ahead.find(b"\n")) < 0:
            self._reply_buffer.append(self._ahead)
            self._ahead.clear()
            count = await self._read(memoryview(chunk)) or self._ended()
            self._ahead += memoryview(chunk)[:count]
        self._reply_buffer.append(self._ahead[: end + 1])
        del self._ahead[: end + 1]
        self._reply_buffer.settle()

    async def _until_end(self) -> None:
        self._reply_buffer.append(self._ahead)
        self._ahead.clear()
        chunk = memoryview(bytearray(_READ_BYTES))
        while count := await self._read(chunk):
            self._reply_buffer.append(chunk[:count])
        self._reply_buffer.settle()

    async def _read(self, view: memoryview) -> int:
        async with within(self._limits.silence_s, "waiting for the reply"):
            count = await self._loop.sock_recv_into(self._sock, view)
        self._timing.first_byte_ns = self._timing.first_byte_ns or monotonic_ns()
        return count

    def _ended(self) -> int:
        raise reset("the connection ended within the reply")


async def _connect(origin: Origin, policy: EndpointPolicy, limits: RpcLimits) -> socket.socket:
    async with within(limits.connect_s, origin.authority):
        sock, _ = await connect(origin, policy)
        return sock


def _retrieve(dial: asyncio.Future[socket.socket]) -> None:
    """So that asyncio does not complain of a failure that no RPC came to hear of."""
    if not dial.cancelled():
        dial.exception()
