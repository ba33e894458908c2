"""One HTTP/1.1 connection: a request at a time, its reply received where it belongs.

    idle ──start──▶ head ──▶ sized body: the kernel, or OpenSSL, writes straight into the sink's memory
                         ──▶ any other:  read into the scratch buffer, decoded, appended to the sink's reply_buffer
         ◀──────────────────  whole; then kept if both sides may, else closed

Bytes that nobody asked for end the connection, so that they are never taken for the reply to a later request.
Owns its transport. Knows nothing of addresses or retries.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import Callable
from typing import Protocol

from sockd_initscripts.rpc.addresses import IpAddress
from sockd_initscripts.rpc.base import ReplyBuffer, RpcFailed, monotonic_ns, protocol_error, reset, timed_out
from sockd_initscripts.rpc.http_body import BodyUntilEnd, ChunkedBody, CollectedBody
from sockd_initscripts.rpc.http_head import Head, parse_head
from sockd_initscripts.rpc.limits import RpcLimits

_INTERIM_HEADS = 8
_END = b"\r\n\r\n"


class Sink(Protocol):
    """Who takes the body of a reply. Called by the stream as soon as the head has been read; never waits."""

    def place(self, head: Head, length: int) -> memoryview:
        """Memory of exactly `length` bytes, more than none. Raises: RpcFailed, which ends the exchange."""

    def collect(self, head: Head) -> ReplyBuffer:
        """For a body of unknown length. Raises: RpcFailed."""


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
        self._scratch = bytearray(limits.head_bytes)
        self._scratch_view = memoryview(self._scratch)
        self._exchange: Exchange | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard = False
        self._is_tls = False
        self._begin_head()

    def _begin_head(self) -> None:
        self._filled = 0
        self._interim = 0
        self._head: Head | None = None
        self._target: memoryview | None = None
        self._received = 0
        self._collected: CollectedBody | None = None

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
        self._exchange = exchange

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
        """Nobody waits for this any more. If it is not over, the connection is."""
        if exchange.done.done() and not exchange.done.cancelled():
            exchange.done.exception()  # or asyncio complains that nobody has looked
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
        # uvloop asks once more after the last byte: there is always room in the scratch buffer.
        if self._target is not None:
            return self._target[self._received :]
        return self._scratch_view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        exchange = self._exchange
        if exchange is None:
            self.abort()
            return
        if not exchange.first_byte_ns:
            exchange.first_byte_ns = monotonic_ns()
        self._heard = True
        if self._target is not None:
            self._received += nbytes
            if self._received == len(self._target):
                self._finish()
            return
        try:
            if self._collected is None:
                self._filled += nbytes
                self._read_head(exchange)
            else:
                self._feed(self._collected, bytes(self._scratch_view[:nbytes]))
        except Exception as error:  # a sink's bug must not leave its caller waiting
            self._fail(error)

    def eof_received(self) -> None:
        if self._exchange is None:
            return
        try:
            if self._collected is None:
                raise reset("the connection ended " + ("within the body" if self._head else "before the reply"))
            self._collected.end()
            self._finish_collected()
        except RpcFailed as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._exchange is not None:
            self._fail(reset(f"the connection was lost: {exc or 'closed'}"))
        if self.on_lost is not None:
            self.on_lost(self)

    # -- reading and writing

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

    def _read_head(self, exchange: Exchange) -> None:
        while (end := self._scratch.find(_END, 0, self._filled)) >= 0:
            head = parse_head(bytes(self._scratch_view[:end]))
            start = end + len(_END)
            if head.status >= 200:
                self._head = head
                self._begin_body(exchange, head, start)
                return
            self._interim += 1
            if head.status == 101 or self._interim > _INTERIM_HEADS:
                raise protocol_error(f"status {head.status} instead of a reply")
            rest = bytes(self._scratch_view[start : self._filled])
            self._scratch_view[: len(rest)] = rest
            self._filled = len(rest)
        if self._filled == len(self._scratch):
            raise protocol_error(f"a head of more than {self._filled} bytes")

    def _begin_body(self, exchange: Exchange, head: Head, start: int) -> None:
        extra = self._scratch_view[start : self._filled]
        length = 0 if exchange.bodiless or head.status in (204, 304) else head.length
        if length is None:
            reply_buffer = exchange.sink.collect(head)
            if head.chunked:
                self._collected = ChunkedBody(bytes(self._scratch_view[:start]), reply_buffer)
            else:
                self._collected = BodyUntilEnd(reply_buffer)
            self._filled = 0
            if extra:
                self._feed(self._collected, bytes(extra))
            return
        if len(extra) > length:
            raise protocol_error(f"more than the {length} bytes that the head announced")
        if length:
            target = exchange.sink.place(head, length)
            target[: len(extra)] = extra
            self._target, self._received = target, len(extra)
            exchange.body_bytes = length
        if len(extra) == length:
            self._finish()

    def _feed(self, body: CollectedBody, data: bytes) -> None:
        body.feed(data)
        if body.whole:
            self._finish_collected()

    def _finish_collected(self) -> None:
        exchange, head = self._exchange, self._head
        assert exchange is not None and head is not None
        exchange.body_bytes = exchange.sink.collect(head).settle()
        self._finish()

    # -- ends

    def _finish(self) -> None:
        exchange, head = self._exchange, self._head
        assert exchange is not None and head is not None
        reusable = head.keep_alive and (self._collected is None or not isinstance(self._collected, BodyUntilEnd))
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
        self._begin_head()

    def _check_silence(self) -> None:
        if self._heard:
            self._heard = False
            self._begin_timer()
        else:
            self._fail(timed_out(f"no byte for {self._limits.silence_s:g} s"))
