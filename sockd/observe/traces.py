"""Traces: what is remembered of the last invocations, bounded by number.

Owns the rings: one of the newest, and one each of failures, cold starts and slow requests, so that many successes do not push out
the one failure, nor many failures of one function those of another. For a request it costs one object of numbers that were taken
anyhow; no answer and no event is kept. What people see of a trace is made when they ask (`trace_spans`). An initscript's report,
which comes after the answer, is found in its run; only the newest few hundred are kept.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Literal

import msgspec

from sockd.base.config import TraceConfig
from sockd.base.errors import FunctionFailed, SockdError
from sockd.base.invoke_request import InvokeRequest
from sockd.base.telemetry import Invocation, SpanContext, Times
from sockd.base.untrusted import read_text
from sockd.functions.serving.leased import Outcome
from sockd.observe.cold_starts import Imported, imported_packages, why_cold
from sockd.observe.fair_ring import FairRing
from sockd_initscripts.client.daemon_run import Run

MAX_REPORTS = 256
"""Each has up to 128 KB."""
ERROR_CHARS = 2000
STACK_CHARS = 6000
"""The most characters of the message and of the frames of one error."""


TraceKind = Literal["any", "cold", "failed", "slow"]
"""Which of them somebody asks for."""


class NoSuchTrace(SockdError):
    """The invocation is unknown, or too long ago."""

    status = 404
    error_type = "ResourceNotFoundException"


class Trace(msgspec.Struct):
    """One invocation in moments of CLOCK_MONOTONIC, in ns; 0 is a moment that did not come."""

    request_id: bytes
    function: str
    version: str
    origin: str
    sandbox_id: str
    node: str
    times: Times
    arrived_ns: int
    answered_ns: int
    exec_started_ns: int = 0
    """The sandbox's own words, as `init_started_ns`."""
    error_type: str = ""
    trigger: str = "http"
    span: SpanContext | None = None
    """Its place in a trace of the caller's, or of ours."""
    deploy: int = 0
    """Its version, as no other deploy has it."""
    started_ns: int = 0
    """A sandbox was asked for; then it had its memory, its process, its code."""
    reserved_ns: int = 0
    forked_ns: int = 0
    ready_ns: int = 0
    init_started_ns: int = 0
    run: Run | None = None
    """The run of the request's initscript."""
    imported: tuple[Imported, ...] = ()
    """What it imported after the fork, of packages."""
    why: str = ""
    """The reason of the cold start, if the caller knows it."""
    passed_over: str = ""
    """Why no Zygote with more of its packages served it."""
    network_ns: tuple[int, int] = (0, 0)
    """When a forked sandbox's own network was asked for, and when it had it."""
    network: str = ""
    """Where that came from; empty: it has none of its own, or came as a spare with one."""
    waited_for: str = ""
    """Why it waited after its admission, and for how long."""
    message: str = ""
    stack: tuple[str, ...] = ()
    """The stack of the request's error: the innermost frames, the innermost last."""
    client_left: bool = False
    """Its client had closed the connection before the answer was whole."""


class Traces:
    """The last invocations, and besides the last failures, cold starts and slow ones."""

    def __init__(self, config: TraceConfig) -> None:
        keep = config.keep
        self._ring: deque[Trace] = deque(maxlen=keep)
        self._failed: FairRing[Trace] = FairRing(config.keep_each if keep else 0)
        self._cold: FairRing[Trace] = FairRing(config.keep_each if keep else 0)
        self._slow: FairRing[Trace] = FairRing(config.keep_each if keep else 0)
        self._slow_ns = config.slow_ms * 1_000_000
        self._with_runs: deque[Trace] = deque()

    def add(self, request: InvokeRequest, outcome: Outcome, span: SpanContext | None = None) -> Trace | None:
        """Remember one that has been answered; it is returned, unless none is kept and it is part of no trace."""
        if not self._ring.maxlen and span is None:
            return None
        trace = trace_of(request, outcome, span)
        self._ring.append(trace)
        if trace.error_type or trace.forked_ns or trace.answered_ns - trace.arrived_ns >= self._slow_ns:
            self._keep(trace)
        if trace.run is not None:
            self._with_runs.append(trace)
            if len(self._with_runs) > MAX_REPORTS:
                self._with_runs.popleft().run = None
        return trace

    def get(self, request_id: str, functions: Sequence[str] = ()) -> Trace:
        """By the text of its request id, or a beginning of it that no other has.

        Args: functions: only of these; empty: of all. Raises: NoSuchTrace."""
        wanted = request_id.replace("-", "").lower()
        remembered = (
            [each for each in self._remembered() if each.function in (functions or [each.function])] if wanted else []
        )
        found = [trace for trace in remembered if trace.request_id.hex().startswith(wanted)]
        ids = {trace.request_id for trace in found}
        if len(ids) != 1:
            known = f"{len(ids)} invocations begin so" if found else f"the last {len(self._ring)} are remembered"
            raise NoSuchTrace(f"no invocation {request_id[:80]!r}: {known}")
        return found[-1]  # the last attempt, of an event that was tried again

    def last(self, limit: int, function: str | None = None, kind: TraceKind = "any") -> list[Trace]:
        """The newest, newest first. Args: function: only those of this one."""
        rings: dict[TraceKind, Iterable[Trace]] = {"cold": self._cold, "failed": self._failed, "slow": self._slow}
        every = self._ring if function is None and limit <= len(self._ring) else None
        chosen = rings[kind] if kind in rings else every or self._remembered()
        newest_first = reversed(list(chosen))
        return list(islice((trace for trace in newest_first if function in (None, trace.function)), limit))

    def why(self, trace: Trace) -> str:
        """Why it was cold, as a sentence; empty: it was not."""
        if not trace.forked_ns:
            return ""
        if self._ring and trace.answered_ns < self._ring[0].arrived_ns:
            return why_cold(trace, ()) if trace.why else "The requests before it are no longer remembered."
        return why_cold(trace, self._ring)

    def _keep(self, trace: Trace) -> None:
        """Remember one for longer than the others."""
        if trace.error_type:
            self._failed.append(trace.function, trace)
        if trace.forked_ns:
            self._cold.append(trace.function, trace)
        if trace.answered_ns - trace.arrived_ns >= self._slow_ns:
            self._slow.append(trace.function, trace)

    def _remembered(self) -> list[Trace]:
        """All of them once, in the order in which they were answered."""
        every = {id(trace): trace for ring in (self._failed, self._cold, self._slow, self._ring) for trace in ring}
        return sorted(every.values(), key=lambda trace: trace.answered_ns)


def trace_of(request: InvokeRequest, outcome: Outcome, span: SpanContext | None = None) -> Trace:
    """What is worth remembering of an outcome: nothing that keeps its sandbox, its answer or its event alive."""
    invocation: Invocation = outcome.invocation
    reply, leased = outcome.reply, outcome.leased
    trace = Trace(
        request.id,
        request.name,
        invocation.version,
        invocation.origin,
        invocation.sandbox_id,
        invocation.node,
        invocation.times,
        request.arrived_ns,
        outcome.answered_ns,
        reply.exec_started_ns,
        reply.error.error_type if reply.error is not None else "",
        request.trigger,
        span,
        leased.deploy,
    )
    if reply.error is not None:
        trace.message, trace.stack = read_text(reply.error.message[:ERROR_CHARS]), innermost(reply.error)
    if leased.waited_for:
        trace.waited_for = leased.waited_for
    if leased.started_ns:  # else it was warm, as nearly all
        trace.started_ns, trace.reserved_ns = leased.started_ns, leased.reserved_ns
        trace.forked_ns, trace.ready_ns = leased.forked_ns, leased.ready_ns
        trace.run = leased.script_run.run if leased.script_run is not None else None
        trace.why, trace.passed_over = invocation.why, leased.passed_over
        if leased.is_new:
            trace.init_started_ns = leased.sandbox.init.started_ns
            trace.imported = imported_packages(leased.sandbox.init.imports or ())
            if invocation.origin in ("zygote", "template"):
                trace.network_ns = leased.sandbox.process.network_ns
                trace.network = leased.sandbox.process.network_words
    return trace


def innermost(error: SockdError) -> tuple[str, ...]:
    """As many of an error's frames as are remembered."""
    frames: list[str] = []
    left = STACK_CHARS
    for frame in reversed(error.stack_trace if isinstance(error, FunctionFailed) else []):
        left -= len(frame)
        if left < 0:
            break
        frames.append(read_text(frame))
    return tuple(reversed(frames))


def trace_of_refused(request: InvokeRequest, error_type: str, span: SpanContext) -> Trace:
    """An invocation for which there was no sandbox."""
    waited_ns = time.monotonic_ns() - request.arrived_ns
    return Trace(
        request_id=request.id,
        function=request.name,
        version="",
        origin="",
        sandbox_id="",
        node="",
        times=Times(queue=waited_ns),
        arrived_ns=request.arrived_ns,
        answered_ns=request.arrived_ns + waited_ns,
        error_type=error_type,
        trigger=request.trigger,
        span=span,
    )
