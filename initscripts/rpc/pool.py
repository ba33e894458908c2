"""The connections that nobody uses just now, kept for whoever goes to the same place next.

Kept per origin and tenant. What is signed request by request (S3, SQS, DynamoDB) shares a tenant: such a connection says
nothing of who used it. What a guest writes freely does not, since a peer may remember who a connection belongs to.
Whoever takes one checks its peer's address by its own policy. Owns the idle connections, the TLS context, gRPC's
channels and the relays; all of them are closed with the pool.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from initscripts.rpc.addresses import Origin
from initscripts.rpc.http_stream import HttpStream
from initscripts.rpc.limits import RpcLimits
from initscripts.rpc.policy import EndpointPolicy
from initscripts.rpc.tls import client_context


class Place(NamedTuple):
    """What connections are exchangeable by."""

    tenant: str
    origin: Origin


class GrpcChannel(Protocol):
    """As much of grpc.aio.Channel as is needed here."""

    def close(self, grace: float | None = None) -> Awaitable[None]: ...


class _Idle(NamedTuple):
    stream: HttpStream
    until_s: float


class ConnectionPool:
    """One per engine; used on its loop alone."""

    def __init__(self, limits: RpcLimits | None = None, *, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: for all connections; else the one that trusts what the system trusts."""
        self.limits = limits or RpcLimits()
        self._tls = tls
        self._idle: dict[Place, deque[_Idle]] = {}
        """The oldest first; no queue is empty."""
        self._timer: asyncio.TimerHandle | None = None
        self._open: set[HttpStream] = set()
        self._closed = False
        self._channels: dict[tuple[Place, str], GrpcChannel] = {}
        """By place and address, the one that was asked for longest ago first."""
        self._closing: set[asyncio.Future[None]] = set()
        self._relays: set[asyncio.Transport] = set()
        self._emptied: asyncio.Future[None] | None = None

    @property
    def tls(self) -> ssl.SSLContext:
        """Shared: making one reads all certificates of the system (60 ms)."""
        if self._tls is None:
            self._tls = client_context()
        return self._tls

    def track(self, place: Place, stream: HttpStream) -> None:
        """A new connection, which comes here whenever it is idle."""
        self._open.add(stream)
        if self._closed:
            stream.abort()
        stream.on_idle = lambda idle: self.put(place, idle)
        stream.on_lost = lambda lost: self._forget(place, lost)

    def take(self, place: Place, policy: EndpointPolicy) -> HttpStream | None:
        """The connection that was used last, if one is open; the caller's until its next reply is whole."""
        queue = self._idle.get(place)
        while queue:
            stream = queue.pop().stream
            if not queue:
                del self._idle[place]
            if not stream.is_fresh():
                stream.abort()
            elif policy.allows(place.origin.host, stream.ip, place.origin.port):
                return stream
            else:
                stream.close()
        return None

    def put(self, place: Place, stream: HttpStream) -> None:
        """Keep an idle connection. Where there are too many, the oldest is closed."""
        if self._closed:
            stream.close()
            return
        queue = self._idle.setdefault(place, deque())
        queue.append(_Idle(stream, asyncio.get_running_loop().time() + self.limits.idle_s))
        if len(queue) > self.limits.idle_per_origin:
            queue.popleft().stream.close()
        elif self.idle_count > self.limits.idle:
            self._close_oldest()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(queue[-1].until_s, self._close_expired)

    def channel(self, place: Place, address: str, make: Callable[[], GrpcChannel]) -> GrpcChannel:
        """The gRPC channel to this address; it keeps its connection itself, and it is everybody's who asks."""
        channel = self._channels.pop((place, address), None) or make()
        self._channels[place, address] = channel
        if len(self._channels) > self.limits.channels:
            oldest = self._channels.pop(next(iter(self._channels)))
            closing = asyncio.ensure_future(oldest.close(self.limits.silence_s))  # after the calls under way
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        return channel

    def discard(self, place: Place) -> None:
        """Close what is idle there."""
        for idle in self._idle.pop(place, ()):
            idle.stream.close()

    @property
    def idle_count(self) -> int:
        """Kept connections, over all places."""
        return sum(map(len, self._idle.values()))

    @property
    def open_count(self) -> int:
        """Connections that this pool will close, idle or not."""
        return len(self._open)

    def relay_made(self, transport: asyncio.Transport) -> None:
        """One of the two transports of a relay."""
        self._relays.add(transport)
        if self._closed:
            transport.abort()

    def relay_lost(self, transport: asyncio.Transport) -> None:
        """It is closed."""
        self._relays.discard(transport)
        self._tell_if_empty()

    @property
    def relay_count(self) -> int:
        """TLS connections that apps use."""
        return len(self._relays) // 2

    async def aclose(self) -> None:
        """Close everything, also what is in use; returns when the sockets are closed."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for stream in tuple(self._open):
            stream.lose()
        for transport in tuple(self._relays):
            transport.abort()
        self._idle.clear()
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close()
        for closing in tuple(self._closing):
            closing.cancel()
        if self._open or self._relays:
            self._emptied = asyncio.get_running_loop().create_future()
            await self._emptied

    def _forget(self, place: Place, stream: HttpStream) -> None:
        self._open.discard(stream)
        self._tell_if_empty()
        queue = self._idle.get(place, ())
        kept = deque(idle for idle in queue if idle.stream is not stream)
        if kept:
            self._idle[place] = kept
        else:
            self._idle.pop(place, None)

    def _tell_if_empty(self) -> None:
        if self._emptied is not None and not (self._open or self._relays or self._emptied.done()):
            self._emptied.set_result(None)

    def _close_oldest(self) -> None:
        place = min(self._idle, key=lambda place: self._idle[place][0].until_s)
        self._pop_oldest(place)

    def _close_expired(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for place in list(self._idle):
            while place in self._idle and self._idle[place][0].until_s <= now_s:
                self._pop_oldest(place)
        next_s = min((queue[0].until_s for queue in self._idle.values()), default=None)
        self._timer = None if next_s is None else asyncio.get_running_loop().call_at(next_s, self._close_expired)

    def _pop_oldest(self, place: Place) -> None:
        self._idle[place].popleft().stream.close()
        if not self._idle[place]:
            del self._idle[place]
