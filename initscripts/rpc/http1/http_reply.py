"""The reply that one HTTP/1.1 connection receives: bytes to a head, and the body to where its sink wants it. Sans-IO.

    begin ──▶ head ──▶ sized body: `room` is the sink's memory, which the kernel, or OpenSSL, writes straight into
                   ──▶ any other:  `room` is the scratch buffer; decoded, appended to the sink's reply_buffer
      ◀──────────────  whole, or `reset`

Owns the scratch buffer, which all replies of a connection share.
"""

from __future__ import annotations

from typing import Protocol

from sockd_initscripts.rpc.base import ReplyBuffer, protocol_error, reset
from sockd_initscripts.rpc.http1.http_body import BodyUntilEnd, ChunkedBody, CollectedBody
from sockd_initscripts.rpc.http1.http_head import Head, parse_head

_INTERIM_HEADS = 8
_END = b"\r\n\r\n"


class Sink(Protocol):
    """Who takes the body of a reply. Called as soon as the head has been read; never waits."""

    def place(self, head: Head, length: int) -> memoryview:
        """Memory of exactly `length` bytes, more than none. Raises: RpcFailed, which ends the exchange."""

    def collect(self, head: Head) -> ReplyBuffer:
        """For a body of unknown length. Raises: RpcFailed."""


class IncomingReply:
    """`begin`; then bytes go to `room`, and `received` takes note of them until it returns True; then `reset`."""

    def __init__(self, head_bytes: int) -> None:
        """Args: head_bytes: the most of a head, and the size of the scratch buffer."""
        self._scratch = bytearray(head_bytes)
        self._scratch_view = memoryview(self._scratch)
        self.reset()

    def reset(self) -> None:
        """Forget the reply, and let go of its sink's memory."""
        self.head: Head | None = None
        self.body_bytes = 0
        """The length of the body, once its end is known."""
        self._sink: Sink | None = None
        self._bodiless = False
        self._filled = 0
        self._interim = 0
        self._target: memoryview | None = None
        self._placed = 0
        self._collected: CollectedBody | None = None

    def begin(self, sink: Sink, *, bodiless: bool) -> None:
        """What is received from now on is a reply for this sink.

        Args: bodiless: the reply has a head only, whatever it says (HEAD)."""
        self._sink = sink
        self._bodiless = bodiless

    @property
    def room(self) -> memoryview:
        """Where the next bytes go; never empty before the reply is whole."""
        # uvloop asks once more after the last byte: there is always room in the scratch buffer.
        if self._target is not None:
            return self._target[self._placed :]
        return self._scratch_view[self._filled :]

    def received(self, count: int) -> bool:
        """Take so many bytes that have been written to the beginning of `room`.

        Returns: whether the reply is whole. Raises: RpcFailed; what the sink raises."""
        if self._target is not None:
            self._placed += count
            return self._placed == len(self._target)
        if self._collected is not None:
            return self._feed(self._collected, bytes(self._scratch_view[:count]))
        self._filled += count
        return self._read_head()

    def end(self) -> None:
        """The peer sends no more: the reply is whole. Raises: RpcFailed, if it is not."""
        if self._collected is None:
            raise reset("the connection ended " + ("within the body" if self.head else "before the reply"))
        self._collected.end()
        self._settle()

    @property
    def keeps_connection(self) -> bool:
        """Whether the connection may have another reply after this one."""
        return self.head is not None and self.head.keep_alive and not isinstance(self._collected, BodyUntilEnd)

    def _read_head(self) -> bool:
        while (end := self._scratch.find(_END, 0, self._filled)) >= 0:
            head = parse_head(bytes(self._scratch_view[:end]))
            start = end + len(_END)
            if head.status >= 200:
                self.head = head
                return self._begin_body(head, start)
            self._interim += 1
            if head.status == 101 or self._interim > _INTERIM_HEADS:
                raise protocol_error(f"status {head.status} instead of a reply")
            rest = bytes(self._scratch_view[start : self._filled])
            self._scratch_view[: len(rest)] = rest
            self._filled = len(rest)
        if self._filled == len(self._scratch):
            raise protocol_error(f"a head of more than {self._filled} bytes")
        return False

    def _begin_body(self, head: Head, start: int) -> bool:
        assert self._sink is not None
        extra = self._scratch_view[start : self._filled]
        length = 0 if self._bodiless or head.status in (204, 304) else head.length
        if length is None:
            reply_buffer = self._sink.collect(head)
            if head.chunked:
                self._collected = ChunkedBody(bytes(self._scratch_view[:start]), reply_buffer)
            else:
                self._collected = BodyUntilEnd(reply_buffer)
            self._filled = 0
            return bool(extra) and self._feed(self._collected, bytes(extra))
        if len(extra) > length:
            raise protocol_error(f"more than the {length} bytes that the head announced")
        if length:
            target = self._sink.place(head, length)
            target[: len(extra)] = extra
            self._target, self._placed = target, len(extra)
            self.body_bytes = length
        return len(extra) == length

    def _feed(self, body: CollectedBody, data: bytes) -> bool:
        body.feed(data)
        if body.whole:
            self._settle()
        return body.whole

    def _settle(self) -> None:
        assert self._sink is not None and self.head is not None
        self.body_bytes = self._sink.collect(self.head).settle()
