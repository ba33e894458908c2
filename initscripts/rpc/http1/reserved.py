"""A kept connection that one guest has for itself, so that its own thread writes the first request there.

    reserve ── write, in the guest's thread ── go_on, on the loop ── as any exchange from here on
           ╰── release, on the loop

The loop has other things to do when a cold start begins, and each thread that is woken up on the way waits for a processor.
The guest's thread has a descriptor of its own: the transport's is closed as soon as the peer hangs up, and its number may
then be another connection's. Owns that descriptor.
"""

from __future__ import annotations

import os
import select

from sockd_initscripts.rpc.base import monotonic_ns
from sockd_initscripts.rpc.http1.http_stream import Exchange, HttpStream


class Reserved:
    """One stream that is idle; plain, since a TLS connection's keys are its transport's."""

    def __init__(self, stream: HttpStream) -> None:
        """On the loop. Raises: OSError, out of descriptors."""
        self.stream = stream
        self._fd = os.dup(stream.fileno())
        self._written = 0
        self._is_fresh = False

    def write(self, exchange: Exchange) -> None:
        """In any thread, once: write as much of the request as there is room for, unless the connection has ended."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN | select.POLLRDHUP)
        self._is_fresh = not poll.poll(0) and not self.stream.closed
        if self._is_fresh:
            # First, so that the loop knows whose a reply is that comes before anything else here is done.
            self.stream.attach(exchange)
            exchange.sent_ns = monotonic_ns()
            try:
                self._written = os.write(self._fd, exchange.request)
            except OSError:
                pass  # the transport runs into it, too, and tells
        self.release()

    def go_on(self, exchange: Exchange) -> bool:
        """On the loop, after `write`: whether the request is on its way; else the connection is closed, and nothing of the
        request has been sent."""
        if self._is_fresh:
            self.stream.go_on(exchange, self._written)
        else:
            self.stream.abort()
        return self._is_fresh

    def abandon(self, exchange: Exchange) -> None:
        """On the loop, instead of `go_on`: the reply is not waited for."""
        if self._is_fresh:
            self.stream.abandon(exchange)
        else:
            self.stream.abort()

    def release(self) -> None:
        """Let go of the descriptor; again is nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
