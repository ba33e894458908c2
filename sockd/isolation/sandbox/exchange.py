"""One request of a sandbox, its answer, and its state. Plain data, except that it passes pieces of an answer to its stream."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sockd.base.errors import SockdError
from sockd.isolation.sandbox.stream import BoundedSink, Flow, Head, Joined, Stream
from sockd_zygote import protocol

NO_REQUEST = 0
"""The number of an exchange without a request, whose end is that the handler has been imported; requests begin with 1."""


class Reply(msgspec.Struct):
    """What came back for one request. (A Struct: one is made for every request, ten times as fast as a dataclass.)"""

    body: bytes = b""
    error: SockdError | None = None
    """What went wrong instead: the handler's own error, or what became of the sandbox."""
    exec_ns: int = 0
    exec_started_ns: int = 0
    """When the handler was called (CLOCK_MONOTONIC), as the sandbox says itself."""
    log: bytes = b""
    log_dropped: int = 0
    stream: Stream | None = None
    """The answer, if it comes piece by piece; not all of it need have been taken yet."""
    peak_bytes: int = 0
    """The most memory that the sandbox had used when it failed; 0: it did not fail, or that is not known."""

    @property
    def answered_error(self) -> SockdError | None:
        """Return the error that the client gets: none if it came after the answer was complete."""
        return None if self.stream is not None and self.stream.is_complete else self.error


class Call(msgspec.Struct):
    """What a sandbox is asked."""

    request_id: bytes
    """16 bytes."""
    event: bytes
    """JSON, as it came; for a web app the request's body."""
    details: bytes = b""
    """JSON of what the sandbox gets with the event."""


class Exchange(msgspec.Struct, eq=False):
    """The request under way."""

    number: int
    done: Callable[[Reply], None]
    """Called once with the result."""
    request_id: bytes = b""
    open_sink: Callable[[], BoundedSink] | None = None
    """Called when the answer begins to come piece by piece."""
    compose: Callable[[bool], Call] | None = None
    """What is still to be sent, when it is known whether the handler is an app."""
    stream: Stream | None = None
    is_over: bool = False
    """Its outcome is certain."""

    def on_head(self, body: bytes, flow: Flow, *, max_joined_bytes: int) -> None:
        """The answer begins to come piece by piece. Raises: ProtocolError."""
        if self.stream is not None:
            raise protocol.ProtocolError("HEAD again")
        head = Head(*protocol.decode_head(body))
        bounded = self.open_sink() if self.open_sink is not None else BoundedSink(Joined(), max_joined_bytes)
        self.stream = Stream(bounded, head, flow)

    def on_chunk(self, body: bytes) -> None:
        """A piece of it. Raises: ProtocolError; ResponseTooLarge."""
        if self.stream is None or self.stream.is_complete:
            raise protocol.ProtocolError(f"CHUNK of {len(body)} bytes out of turn")
        if body:
            self.stream.push(body)
        else:
            self.stream.is_complete = True
