"""What happened to one invocation, as plain data: its phases, its answer, its log; and what a function is, for reading.

Owns nothing. Times are differences of CLOCK_MONOTONIC in ns, taken where the phase really ended: some in the daemon,
some in the sandbox (the clock is the same; sandboxes have no time namespace).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

Origin = Literal["warm", "paused", "spare", "zygote", "template"]
"""Where the sandbox came from: running idle, thawed, forked ahead, or forked for this very request: of a Zygote, which leaves the
init to the sandbox, or of its version's template, which has run the init."""
COLD = frozenset(("spare", "zygote", "template"))
"""The origins of sandboxes that become the function for the request."""
ASKED_FOR = "asked for"
"""Why a start was cold that need not have been."""


_WARM = "setup;dur=0.000, init;dur=0.000"


class Times(msgspec.Struct, frozen=True):
    """The phases of one invocation, each in ns; a phase that did not happen is 0."""

    queue: int = 0
    """Waiting for the function's concurrency, and for a sandbox while as many start as may."""
    setup: int = 0
    """From admission to a confined process of the function's own: memory, cgroup, root, fork."""
    init: int = 0
    """Importing the handler and what it imports."""
    exec: int = 0
    """The handler itself."""

    def server_timing(self) -> str:
        """The `Server-Timing` header (W3C Server Timing; durations in ms)."""
        # Written out, because it is made for every request and this is three times as fast as a loop.
        started = (
            f"setup;dur={self.setup / 1e6:.3f}, init;dur={self.init / 1e6:.3f}" if self.setup or self.init else _WARM
        )
        return f"queue;dur={self.queue / 1e6:.3f}, {started}, exec;dur={self.exec / 1e6:.3f}"


class TraceContext(msgspec.Struct, frozen=True):
    """Which trace a request belongs to (W3C Trace Context)."""

    trace_id: bytes
    """16 bytes, not all zero."""
    parent_id: bytes
    """8 bytes, the caller's span; empty, if the caller has none."""
    sampled: bool | None
    """The caller's decision to record; None leaves it to us."""
    state: str = ""
    """`tracestate`, as it came."""


class SpanContext(msgspec.Struct, frozen=True):
    """One invocation as a span of a trace."""

    trace_id: bytes
    span_id: bytes
    """8 bytes; empty, if it is not recorded."""
    parent_id: bytes
    """8 bytes, or empty."""
    state: str = ""


class Invocation(msgspec.Struct, frozen=True):
    """One answered request. (Structs, as one of each is made for every request.)"""

    body: bytes
    """The handler's answer: JSON, or what a generator or a web app made."""
    origin: Origin
    sandbox_id: str
    version: str
    node: str = ""
    """The Zygote that the sandbox was forked from, as its packages; or the version's snapshot; empty for the root Zygote."""
    times: Times = Times()
    streamed: bool = False
    """The answer went to the request's sink, piece by piece; the body is empty."""
    trace: str = ""
    """Its trace context for `x-amzn-trace-id`; empty, if it is part of no trace."""
    why: str = ""
    """Why it was cold, where that is known at once: ASKED_FOR."""

    @property
    def cold(self) -> bool:
        """True when the sandbox became the function for this request."""
        return self.origin in COLD


Ending = Invocation | BaseException
"""What becomes of an invocation: it is answered, or there is an error."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """What one request wrote to stdout and stderr."""

    request_id: str
    time_s: float
    """Unix time of the answer."""
    text: bytes
    dropped_bytes: int
    """Bytes beyond the limit that were read and thrown away."""
    function: str = ""
    version: str = ""
    """The one that ran, as `Invocation.version`."""
    ended: bool = True
    """False: the request runs on, and these are whole lines of it that a follower has not had yet."""


class FunctionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One function as the management API and `sockd ls` show it: the version that is current."""

    name: str
    version: str
    """The digest of its code, or of its image."""
    version_number: int
    handler: str
    is_app: bool = False
    """Whether it is known to be a web app: by its settings, its files, or what its first sandbox said."""
    memory_mb: int
    timeout_s: float
    concurrency: int
    network: str
    egress: list[str] | None = None
    """What its private network reaches, as `sockd.toml` says it; None: the internet without private ranges."""
    has_private: bool = False
    """Whether a version that is remembered has a private network; `egress` are its rules, too."""
    packages: list[str]
    """Its closure, as `name==version`, sorted."""
    storage: str = "own"
    """The owner of the storage library that the function imports."""
    zygote: str = "packages"
    python: str | None = None
    """Version of its interpreter; None: the worker's own."""
    """What may be imported ahead for it: packages, stdlib or none."""
    initscript: str = ""
    """Digest of its initscript's module; empty: it has none."""
    image: str = ""
    """The container image that it runs in, as its settings name it; empty: it has none."""
    source: str = ""
    """FILE:FUNCTION of a decorated function; empty: it was deployed from a directory or zip."""
    snapshot: str = ""
    """Whether starts are forked from a snapshot: waiting, making, serving, refused or evicted; empty: none is wanted."""
    snapshot_reason: str = ""
    """Why there is none now, and what to do."""
    run: str | None = None
    """Who may call it at /run: open, keys or off; None: as the worker's `http.run` says."""
    call_key_id: str = ""
    """Names the key that its deployer's calls are signed with."""
    code_bytes: int
    created_at: float
    """Unix time of the first deploy."""
    updated_at: float
    """Unix time of the deploy of this version."""
    state: str = "ready"
    """In a few words, what it lacks; "ready": it can run."""
    state_reason: str = ""
    """What it lacks and what mends that; empty: it can run."""
