"""An origin as one function uses it: idle connections first, a new one otherwise, and one more try where that is safe.

A kept connection may have been closed by its server while the request was on its way. If so, nothing of a reply has
come, and a request that may be repeated is sent once more, on a new connection. A request that may be hedged is also sent once
more when nothing of a reply has come for a while; the first connection is given up when the other is faster.
Owns the connection that it dials ahead, and those that an app gave it. Knows nothing of what requests mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import itertools
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from sockd_initscripts.rpc.base import RpcFailed, RpcTiming, busy, monotonic_ns
from sockd_initscripts.rpc.dialing.addresses import IpAddress, Origin
from sockd_initscripts.rpc.dialing.dialing import connect, within
from sockd_initscripts.rpc.dialing.policy import EndpointPolicy
from sockd_initscripts.rpc.dialing.tls import Trust
from sockd_initscripts.rpc.http1.http_head import Head
from sockd_initscripts.rpc.http1.http_reply import Sink
from sockd_initscripts.rpc.http1.http_stream import Exchange, HttpStream
from sockd_initscripts.rpc.http1.pool import ConnectionPool, Place
from sockd_initscripts.rpc.http1.race import Race
from sockd_initscripts.rpc.http1.relay import relay
from sockd_initscripts.rpc.http1.reserved import Reserved

_ADOPTIONS = itertools.count(1)


class HttpClient:
    """One per connection of a guest."""

    def __init__(
        self, origin: Origin, policy: EndpointPolicy, pool: ConnectionPool, *, tenant: str, trust: Trust | None = None
    ) -> None:
        """Args: trust: of connections with TLS; None: in the system's authorities."""
        self._trust = trust or pool.trust()
        self._place = Place(f"{tenant} {self._trust.name}", origin)
        self._adopted = False
        self._policy = policy
        self._pool = pool
        self._loop = pool.loop
        self._ahead: asyncio.Task[HttpStream] | None = None
        self._reserved: Reserved | None = None
        """For the first request, which takes it."""
        self._under_way: set[Exchange] = set()

    @property
    def origin(self) -> Origin:
        return self._place.origin

    @property
    def is_reserved(self) -> bool:
        """Whether a connection waits for the first request, which may then begin in any thread: see Connection."""
        return self._reserved is not None

    def dial_ahead(self) -> None:
        """Have a connection soon, if none is idle. Its failure is raised in the request that would have used it."""
        if self.reserve():
            return
        stream = self._pool.take(self._place, self._policy)
        if stream is None:
            self._ahead = self._loop.create_task(self._dial())
            self._ahead.add_done_callback(_retrieve)
        else:
            self._pool.put(self._place, stream)

    def reserve(self) -> bool:
        """Have a kept connection for the first request, if there is a plain one. In any thread, before anything else is asked
        of this."""
        self._reserved = self._pool.reserve(self._place, self._policy)
        return self._reserved is not None

    def adopt(self, sock: socket.socket, ip: IpAddress) -> None:
        """Use this connection first; it is not kept for others. Takes the socket over."""
        self._place = Place(f"adopted {next(_ADOPTIONS)}", self.origin)
        self._adopted = True
        self._ahead = asyncio.get_running_loop().create_task(self._wrap(sock, ip))
        # One that is cancelled before its first step has never had the socket.
        self._ahead.add_done_callback(lambda task: sock.close() if task.cancelled() else _retrieve(task))

    async def fetch(
        self,
        request: bytes,
        sink: Sink,
        timing: RpcTiming,
        *,
        repeatable: bool = True,
        hedged: bool = False,
        bodiless: bool = False,
    ) -> Head:
        """Send a request and receive its reply. If a connection is idle, the request has been written when this first
        waits.

        Args: hedged: send it once more, over another connection, if nothing comes (`RpcLimits.hedge_s`).
        Raises: RpcFailed, whatever a sink raises; the connection is closed then, as when it is cancelled."""
        again = None
        if hedged:
            race = Race(sink)
            sink = race.lane()
            again = functools.partial(self.fetch, request, race.lane(), timing, bodiless=bodiless)
        exchange = Exchange(request, sink, self._loop, bodiless=bodiless)
        first = exchange
        self._under_way.add(first)
        try:
            stream = await self._write_reserved(exchange)
            if stream is None:
                stream = self._pool.take(self._place, self._policy) or await self._new()
                stream.start(exchange)
            kept = stream.requests > 1
            while True:
                timing.connection = "kept" if kept else "new"
                timing.sent_ns = exchange.sent_ns
                try:
                    head = await (exchange.done if again is None else self._first_reply(exchange, again))
                except RpcFailed as failure:
                    timing.first_byte_ns = exchange.first_byte_ns
                    stale = kept and failure.errno == errno.ECONNRESET and not exchange.first_byte_ns
                    if not (stale and repeatable):
                        raise
                    kept, stream = False, await self._dial()
                    exchange = Exchange(request, sink, self._loop, bodiless=bodiless)
                    stream.start(exchange)
                except BaseException:
                    stream.abandon(exchange)
                    raise
                else:
                    if not exchange.done.done():  # the other was faster
                        stream.abandon(exchange)
                        return head
                    timing.first_byte_ns, timing.done_ns = exchange.first_byte_ns, monotonic_ns()
                    timing.bytes = exchange.body_bytes
                    return head
        finally:
            self._under_way.discard(first)

    async def _first_reply(self, exchange: Exchange, again: Callable[[], Coroutine[Any, Any, Head]]) -> Head:
        """The head of this exchange, or of what `again` does if nothing of a reply comes for a while: of the faster one, if it
        does not fail. Raises: RpcFailed of the exchange, if both fail."""
        await asyncio.wait([exchange.done], timeout=self._pool.limits.hedge_s)
        if exchange.done.done() or exchange.first_byte_ns:
            return await exchange.done
        second = self._loop.create_task(again())
        second.add_done_callback(_retrieve)
        try:
            await asyncio.wait([exchange.done, second], return_when=asyncio.FIRST_COMPLETED)
            if not exchange.done.done() or exchange.done.exception() is not None:
                with contextlib.suppress(RpcFailed):
                    return await second
            return await exchange.done
        finally:
            second.cancel()

    async def detach(self) -> tuple[socket.socket, Literal["tcp", "relay"]]:
        """See Connection.detach."""
        if self._under_way:
            raise busy(f"{len(self._under_way)} requests to {self.origin.authority} are under way")
        self._release()
        stream = self._pool.take(self._place, self._policy) or await self._new()
        if not self.origin.tls:
            return stream.release_socket(), "tcp"
        if self._pool.relay_count >= self._pool.limits.relays:
            stream.close()
            raise busy("too many TLS connections are relayed to apps")
        return await relay(stream, self._pool), "relay"

    def close(self) -> None:
        """A connection that was reserved or dialled ahead and never used is kept for others."""
        self._release()
        ahead, self._ahead = self._ahead, None
        if self._adopted:
            self._pool.discard(self._place)
        if ahead is None:
            return
        if ahead.done() and not ahead.cancelled() and ahead.exception() is None:
            if self._adopted:
                ahead.result().close()
            else:
                self._pool.put(self._place, ahead.result())
        ahead.cancel()

    async def _write_reserved(self, exchange: Exchange) -> HttpStream | None:
        """The connection on which this exchange has begun; None: it has not."""
        reserved, self._reserved = self._reserved, None
        if reserved is None:
            return None
        reserved.write(exchange)
        try:
            await asyncio.sleep(0)  # the step that follows is the loop's, whosever this one was
        except BaseException:
            reserved.abandon(exchange)
            raise
        return reserved.stream if reserved.go_on(exchange) else None

    def _release(self) -> None:
        """What is reserved was not used: others may."""
        reserved, self._reserved = self._reserved, None
        if reserved is None:
            return
        reserved.release()
        if reserved.stream.is_fresh():
            self._pool.put(self._place, reserved.stream)
        else:
            reserved.stream.abort()

    async def _new(self) -> HttpStream:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            stream = await ahead
            if stream.is_fresh():
                return stream
            stream.abort()
        return await self._dial()

    async def _dial(self) -> HttpStream:
        async with within(self._pool.limits.connect_s, self.origin.authority):
            sock, ip = await connect(self.origin, self._policy)
            return await self._wrap(sock, ip)

    async def _wrap(self, sock: socket.socket, ip: IpAddress) -> HttpStream:
        stream = HttpStream(ip, self._pool.limits)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: stream,
                sock=sock,
                ssl=self._trust.context if self.origin.tls else None,
                server_hostname=self.origin.host if self.origin.tls else None,
            )
        except BaseException:
            sock.close()
            raise
        self._pool.track(self._place, stream)
        return stream


def _retrieve(task: asyncio.Task[Any]) -> None:
    """So that asyncio does not complain of a failure that no request came to hear of."""
    if not task.cancelled():
        task.exception()
