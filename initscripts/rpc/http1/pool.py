"""The connections that are idle, kept for the next request to the same place.

Connections are kept by origin and tenant. Requests that are each signed (S3, SQS, DynamoDB) share one tenant, because a signed
request does not depend on the requests before it. Bytes that a guest writes freely have the tenant of the guest's environment,
because the peer may keep a state for the connection. The request that takes a connection checks its peer's address by its own
policy. Owns the idle connections, the trust in the system's authorities, gRPC's channels and the relays; all of them are closed
with the pool.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from operator import itemgetter
from typing import NamedTuple, Protocol

from sockd_initscripts.rpc.dialing.addresses import Origin
from sockd_initscripts.rpc.dialing.policy import EndpointPolicy
from sockd_initscripts.rpc.dialing.tls import Trust
from sockd_initscripts.rpc.http1.http_stream import HttpStream
from sockd_initscripts.rpc.http1.reserved import Reserved
from sockd_initscripts.rpc.limits import RpcLimits


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
    reserved: Reserved | None
    """For a guest's thread to write on; None: TLS, or there was no descriptor."""

    def taken(self) -> HttpStream:
        """By somebody on the loop, who writes through the transport."""
        if self.reserved is not None:
            self.reserved.release()
        return self.stream


class ConnectionPool:
    """One per engine; made on its loop and used there alone, but for `reserve`."""

    def __init__(self, limits: RpcLimits | None = None, *, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: trusts what the system trusts, if that has been made before."""
        self.limits = limits or RpcLimits()
        self.loop = asyncio.get_running_loop()
        self._trust = Trust(context=tls)
        self._trusts: weakref.WeakValueDictionary[str, Trust] = weakref.WeakValueDictionary()
        """Trusts in authorities of functions, by name."""
        self._idle: dict[Place, deque[_Idle]] = {}
        """The oldest first; no queue is empty. Read and changed under the lock."""
        self._lock = threading.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._open: set[HttpStream] = set()
        self._closed = False
        self._channels: dict[tuple[Place, str], GrpcChannel] = {}
        """By place and address, the one that was asked for longest ago first."""
        self._closing: set[asyncio.Future[None]] = set()
        self._relays: set[asyncio.Transport] = set()
        self._emptied: asyncio.Future[None] | None = None

    def trust(self, authorities: bytes | None = None) -> Trust:
        """The trust in these authorities (PEM), shared by all who ask for the same. None: in the system's."""
        if authorities is None:
            return self._trust
        trust = Trust(authorities)
        return self._trusts.setdefault(trust.name, trust)

    def track(self, place: Place, stream: HttpStream) -> None:
        """A new connection, which comes here whenever it is idle."""
        self._open.add(stream)
        if self._closed:
            stream.abort()
        stream.on_idle = lambda idle: self.put(place, idle)
        stream.on_lost = lambda lost: self._forget(place, lost)

    def take(self, place: Place, policy: EndpointPolicy) -> HttpStream | None:
        """The connection that was used last, if one is open; the caller's until its next reply is whole."""
        while (idle := self._pop(place)) is not None:
            stream = idle.taken()
            if not stream.is_fresh():
                stream.abort()
            elif policy.allows(place.origin.host, stream.ip, place.origin.port):
                return stream
            else:
                stream.close()
        return None

    def reserve(self, place: Place, policy: EndpointPolicy) -> Reserved | None:
        """In any thread: the same, without TLS, for a guest's thread to write on. It may have ended: see `Reserved.write`."""
        while not place.origin.tls and (idle := self._pop(place)) is not None:
            stream, reserved = idle.stream, idle.reserved
            if reserved is None:
                self.loop.call_soon_threadsafe(self.put, place, stream)
                return None
            if policy.allows(place.origin.host, stream.ip, place.origin.port):
                return reserved
            reserved.release()
            self.loop.call_soon_threadsafe(stream.close)
        return None

    def put(self, place: Place, stream: HttpStream) -> None:
        """Keep an idle connection. Where there are too many, the oldest is closed."""
        if self._closed:
            stream.close()
            return
        until_s = self.loop.time() + self.limits.idle_s
        idle = _Idle(stream, until_s, None if place.origin.tls else _reserved(stream))
        with self._lock:
            queue = self._idle.setdefault(place, deque())
            queue.append(idle)
            is_full = len(queue) > self.limits.idle_per_origin
        if is_full:
            self._close_first(place)
        elif self.idle_count > self.limits.idle:
            self._close_oldest()
        if self._timer is None:
            self._timer = self.loop.call_at(until_s, self._close_expired)

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
        while (idle := self._pop(place)) is not None:
            idle.taken().close()

    @property
    def idle_count(self) -> int:
        """Kept connections, over all places."""
        with self._lock:
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
        """Remove a connection that is closed."""
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
        for place in list(self._idle):
            while (idle := self._pop(place)) is not None:
                idle.taken()
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
        with self._lock:
            queue = self._idle.get(place, deque())
            lost = next((idle for idle in queue if idle.stream is stream), None)
            if lost is not None:
                queue.remove(lost)
                if not queue:
                    del self._idle[place]
        if lost is not None:
            lost.taken()

    def _tell_if_empty(self) -> None:
        if self._emptied is not None and not (self._open or self._relays or self._emptied.done()):
            self._emptied.set_result(None)

    def _close_oldest(self) -> None:
        if (oldest := self._oldest()) is not None:
            self._close_first(oldest[1])

    def _close_expired(self) -> None:
        now_s = self.loop.time()
        while (oldest := self._oldest()) is not None and oldest[0] <= now_s:
            self._close_first(oldest[1])
        self._timer = None if oldest is None else self.loop.call_at(oldest[0], self._close_expired)

    def _oldest(self) -> tuple[float, Place] | None:
        """Until when the connection is kept that was put here first of all, and where it is."""
        with self._lock:
            return min(
                ((queue[0].until_s, place) for place, queue in self._idle.items()), key=itemgetter(0), default=None
            )

    def _close_first(self, place: Place) -> None:
        if (idle := self._pop(place, first=True)) is not None:
            idle.taken().close()

    def _pop(self, place: Place, *, first: bool = False) -> _Idle | None:
        """In any thread: what was used last there, or first."""
        with self._lock:
            queue = self._idle.get(place)
            if queue is None:
                return None
            idle = queue.popleft() if first else queue.pop()
            if not queue:
                del self._idle[place]
            return idle


def _reserved(stream: HttpStream) -> Reserved | None:
    try:
        return Reserved(stream)
    except OSError:  # out of descriptors: it has one
        return None
