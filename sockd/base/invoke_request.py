"""One invocation as it was asked for, through whatever API, as plain data; and who takes its answer piece by piece.

Owns nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from sockd.base.errors import NoWebSockets
from sockd.base.telemetry import Invocation, TraceContext


class Duplex(Protocol):
    """A client's connection once it has switched to another protocol: a stream of bytes in both directions."""

    async def read(self, n: int, /) -> bytes:
        """What has come, at most so many bytes; empty: the client sends no more. Raises: ConnectionError."""

    def write(self, data: bytes, /) -> None:
        """Send."""

    async def drain(self) -> None:
        """Wait until the client has taken most of what was written. Raises: ConnectionError."""

    def write_eof(self) -> None:
        """Send no more."""


class Sink(Protocol):
    """Takes an answer while it is being made. To be subclassed by each API that can pass one on.

    An answer that comes whole never touches it. After an error no more comes: what has begun is to be cut."""

    begun: Invocation | None = None
    """What is known of the invocation when its answer begins; set before `head` is called."""
    on_gone: Callable[[], None] | None = None
    """For the sink to call, at any time and once: its client has gone. What comes after that is to be dropped."""

    can_switch: bool = False
    """Whether it can `switch`."""

    async def switch(self, headers: list[tuple[bytes, bytes]]) -> Duplex:
        """Called instead of `head`, where `as_http` says that the client asks for another protocol and a program agrees.

        Raises: NoWebSockets: it cannot; ConnectionError: the client has gone."""
        raise NoWebSockets

    async def head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Called once, before the first chunk. Names are in lower case; names and values are fit for HTTP, whatever their
        origin."""

    async def chunk(self, data: bytes) -> None:
        """A part of the body. Waits while the client reads slowly: meanwhile the function waits, too."""


class InvokeRequest(msgspec.Struct):
    """What a request is made of, from an API to a sandbox. (A struct, as one is made for every request.)"""

    name: str
    """The function."""
    payload: bytes
    """The event, JSON that the daemon never looks at."""
    id: bytes
    """16 bytes, a UUID."""
    arrived_ns: int
    """When the request's head was read, CLOCK_MONOTONIC."""
    gone: Callable[[], bool] | None = None
    """Whether the client has gone; asked if it had to wait, before anything is run."""
    trigger: str = "http"
    """What asked for it, in OpenTelemetry's words for `faas.trigger`: http, timer, other (an SDK's Invoke)."""
    details: dict[str, Any] | None = None
    """What the sandbox gets with the event (see `sockd_zygote.messages.details`):

        client_context   any JSON, AWS's ClientContext
        trace            text for `_X_AMZN_TRACE_ID`; traceparent and tracestate: for TRACEPARENT and TRACESTATE
        arn              `context.invoked_function_arn`
        deployer         true: the request is signed with the deployer's key (`context._from_deployer`)
        http             the request as it came: method, path and raw_path below the function, root_path above it, query,
                         headers [[name, value], ...], client, server, scheme; the payload is its body then"""
    method: str = "POST"
    """The HTTP method, for functions that accept certain ones only; "*" is accepted by all of them."""
    query: bytes = b""
    """The HTTP query, undecoded, for a web app: a function of events is not called with one."""
    as_http: Callable[[], tuple[dict[str, Any], bytes]] | None = None
    """For a function that is a web app, which is not known before it has been looked up: what `details["http"]` is to be, and
    the body that is its payload."""
    sink: Sink | None = None
    """Takes a streamed answer; without one its pieces are joined, up to the limit of an answer."""
    trace: TraceContext | None = None
    """The trace that the request is a part of. It is set by the entry point if the caller names a trace, or else by the
    exporter of traces."""
    amzn_trace: str = ""
    """That trace in AWS's words; set with its details."""
    qualifier: str = ""
    """Which version: empty or "$LATEST" is what was deployed last; else a published number, or an alias."""
    retried_as: bytes = b""
    """What all tries of one call have in common, at least 6 random bytes; empty: not known."""
    expected: list[str] | None = None
    """The code that may run, as digests and source tags (`sockd.base.call_signature`); None: whatever is deployed."""
    entered: bool = False
    """Whether the request was passed to a sandbox: from then on it may have had effects."""
    hides_errors: bool = False
    """Whether the caller gets the request's id instead of a function's own error; logs, traces and dead letters have all of
    it."""
    fresh: bool = False
    """In a new sandbox, whatever is idle; it takes the place of the one that would have served."""

    def draw(self) -> float:
        """A number in [0, 1) that decides between the versions of an alias: the same one for all tries of a call."""
        return int.from_bytes((self.retried_as or self.id)[:6]) / (1 << 48)
