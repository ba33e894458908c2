"""One HTTP/1.1 connection: a request at a time, its reply received where it belongs (`http_reply`).

    idle ──start──▶ exchange ──▶ reply whole; then kept if both sides may, else closed

Bytes that no request is answered by end the connection, so that they are never taken for the reply to a later one.
Owns its transport. Knows nothing of addresses or retries.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable

from sockd_initscripts.rpc.base import RpcFailed, monotonic_ns, reset, timed_out
from sockd_initscripts.rpc.dialing.addresses import IpAddress
from sockd_initscripts.rpc.http1.http_head import Head
from sockd_initscripts.rpc.http1.http_reply import IncomingReply, Sink
from sockd_initscripts.rpc.limits import RpcLimits


class Exchange:
    """One request and its reply."""

    __slots__ = ("bodiless", "body_bytes", "done", "first_byte_ns", "request", "sent_ns", "sink")

    def __init__(self, request: bytes, sink: Sink, loop: asyncio.AbstractEventLoop, *, bodiless: bool) -> None:
        """`bodiless`: the reply has a head only, whatever it says (HEAD)."""
        self.request = request
        self.sink = sink
        self.bodiless = bodiless
        self.done: asyncio.Future[Head] = loop.create_future()
        """Raises: RpcFailed."""
        self.sent_ns = self.first_byte_ns = self.body_bytes = 0


class HttpStream(asyncio.BufferedProtocol):
    """The protocol of one socket, plain or TLS."""

    transport: asyncio.Transport

    def __init__(self, ip: IpAddress, limits: RpcLimits) -> None:
        self.ip = ip
        """The address of the peer, for policies of other guests than the one that connected."""
        self.requests = 0
        self.closed = False
        self.on_idle: Callable[[HttpStream], None] = HttpStream.close
        """A reply is whole and the connection may be used again: who shall have it?"""
        self.on_lost: Callable[[HttpStream], None] | None = None
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._reply = IncomingReply(limits.head_bytes)
        self._exchange: Exchange | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard = False
        self._is_tls = False

    # -- its user's calls

    def start(self, exchange: Exchange) -> None:
        """Write the request now; `exchange.done` will tell. Only on an idle connection."""
        self.attach(exchange)
        self._begin_timer()
        # Before the call and not after it: whom the bytes wake may have the processor until it returns, milliseconds later.
        exchange.sent_ns = monotonic_ns()
        self._write(exchange.request)

    def attach(self, exchange: Exchange) -> None:
        """What is read from now on is the reply to this; the request is the caller's to write. In any thread, if the
        connection is that thread's alone."""
        assert self._exchange is None
        self._heard = False
        self.requests += 1
        self._reply.begin(exchange.sink, bodiless=exchange.bodiless)
        self._exchange = exchange  # last: what is read on the loop from here on is the reply

    def go_on(self, exchange: Exchange, written: int) -> None:
        """On the loop, with an exchange that was attached elsewhere, and so many bytes of its request written."""
        if exchange.done.done():  # and the connection may be another's by now
            return
        if self._exchange is not exchange or self.closed:
            # It was lost just as the other thread attached: neither side has seen the other.
            self._exchange = None
            exchange.done.set_exception(reset("the connection was lost: closed"))
            return
        self._begin_timer()
        if written < len(exchange.request):
            self.transport.write(exchange.request[written:])

    def abandon(self, exchange: Exchange) -> None:
        """End the exchange, whose reply is of no use any more. If it is not over, the connection is closed."""
        if exchange.done.done() and not exchange.done.cancelled():
            exchange.done.exception()  # or asyncio logs an exception that was never retrieved
        if self._exchange is exchange:
            self.abort()

    def is_fresh(self) -> bool:
        """Idle, open, and nothing waits to be read from it, not even its end."""
        if self.closed or self._exchange is not None or self.transport.is_closing():
            return False
        if self._is_tls:
            return True  # a server's session tickets wait there, too
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN | select.POLLRDHUP)
        return not poll.poll(0)

    def fileno(self) -> int:
        """The descriptor of the transport's socket, which owns it."""
        fd: int = self.transport.get_extra_info("socket").fileno()
        return fd

    def release_socket(self) -> socket.socket:
        """Take the TCP connection out of the transport, which ends without the peer noticing. Only if idle, not TLS."""
        # A second fd keeps the connection open; abort() closes the transport's fd only and never calls shutdown(2).
        sock = socket.socket(fileno=os.dup(self.fileno()))
        self.abort()
        sock.setblocking(True)
        return sock

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Give the transport to another protocol; this is as lost then. Only if idle."""
        self.transport.set_protocol(protocol)
        self.connection_lost(None)

    def close(self) -> None:
        """Nothing more will be sent."""
        self.transport.close()

    def lose(self) -> None:
        """End it now; an exchange under way fails."""
        self._fail(reset("the connection was closed here"))

    def abort(self) -> None:
        """End it now. Nothing more is written to any sink; an exchange under way is never done."""
        self._end_exchange()
        self.transport.abort()

    # -- the transport's calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self._is_tls = transport.get_extra_info("ssl_object") is not None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reply.room

    def buffer_updated(self, nbytes: int) -> None:
        exchange = self._exchange
        if exchange is None:
            self.abort()
            return
        if not exchange.first_byte_ns:
            exchange.first_byte_ns = monotonic_ns()
        self._heard = True
        try:
            whole = self._reply.received(nbytes)
        except Exception as error:  # a sink's bug must not leave its caller waiting
            self._fail(error)
            return
        if whole:
            self._finish(exchange)

    def eof_received(self) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        try:
            self._reply.end()
        except RpcFailed as error:
            self._fail(error)
            return
        self._finish(exchange)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._exchange is not None:
            self._fail(reset(f"the connection was lost: {exc or 'closed'}"))
        if self.on_lost is not None:
            self.on_lost(self)

    # -- writing

    def _write(self, request: bytes) -> None:
        sent = 0
        # uvloop writes when all that is ready in this turn of the loop has run; the first byte need not wait for that.
        if not self._is_tls and not self.transport.get_write_buffer_size():
            try:
                sent = os.write(self.fileno(), request)
            except OSError:
                pass  # the transport runs into it, too, and tells
        if sent < len(request):
            self.transport.write(request[sent:])

    # -- ends

    def _finish(self, exchange: Exchange) -> None:
        head, reusable = self._reply.head, self._reply.keeps_connection
        assert head is not None
        exchange.body_bytes = self._reply.body_bytes
        self._end_exchange()
        if not exchange.done.done():
            exchange.done.set_result(head)
        if reusable and not self.transport.is_closing():
            self.on_idle(self)
        else:
            self.close()

    def _fail(self, error: Exception) -> None:
        exchange = self._exchange
        self.abort()
        if exchange is not None and not exchange.done.done():
            exchange.done.set_exception(error)

    def _begin_timer(self) -> None:
        self._timer = self._loop.call_later(self._limits.silence_s, self._check_silence)

    def _end_exchange(self) -> None:
        self._exchange = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._reply.reset()

    def _check_silence(self) -> None:
        if self._heard:
            self._heard = False
            self._begin_timer()
        else:
            self._fail(timed_out(f"no byte for {self._limits.silence_s:g} s"))
