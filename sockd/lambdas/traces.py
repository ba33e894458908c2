"""Traces: what is remembered of the last invocations, bounded by number.

Owns the ring. For a request it costs one object of numbers that were taken anyhow; no answer and no event is kept. What
people see of a trace is made when they ask (`trace_spans`). An initscript's report, which comes after the answer, is
found in its run; only the newest few hundred are kept.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import islice

import msgspec

from initscripts.daemon_run import Run
from sockd.errors import SockdError
from sockd.invoke_request import InvokeRequest
from sockd.lambdas.cold_starts import Imported, imported_packages, why_cold
from sockd.lambdas.leased import Outcome
from sockd.telemetry import Invocation, SpanContext, Times

MAX_REPORTS = 256
"""Each has up to 128 KB."""


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
    """Of its initscript."""
    imported: tuple[Imported, ...] = ()
    """What it imported after the fork, of packages."""
    why: str = ""
    """Why it was cold, if whoever called said so."""
    passed_over: str = ""
    """Why no Zygote with more of its packages served it."""


class Traces:
    """The last `keep` invocations."""

    def __init__(self, keep: int) -> None:
        self._ring: deque[Trace] = deque(maxlen=keep)
        self._with_runs: deque[Trace] = deque()

    def add(self, request: InvokeRequest, outcome: Outcome, span: SpanContext | None = None) -> Trace | None:
        """Remember one that has been answered; it is returned, unless none is kept and it is part of no trace."""
        if not self._ring.maxlen and span is None:
            return None
        trace = trace_of(request, outcome, span)
        self._ring.append(trace)
        if trace.run is not None:
            self._with_runs.append(trace)
            if len(self._with_runs) > MAX_REPORTS:
                self._with_runs.popleft().run = None
        return trace

    def get(self, request_id: str) -> Trace:
        """By the text of its request id, or a beginning of it that no other has. Raises: NoSuchTrace."""
        wanted = request_id.replace("-", "").lower()
        found = [trace for trace in self._ring if trace.request_id.hex().startswith(wanted)] if wanted else []
        ids = {trace.request_id for trace in found}
        if len(ids) != 1:
            known = f"{len(ids)} invocations begin so" if found else f"the last {len(self._ring)} are remembered"
            raise NoSuchTrace(f"no invocation {request_id[:80]!r}: {known}")
        return found[-1]  # the last attempt, of an event that was tried again

    def last(self, limit: int, function: str | None = None, *, cold: bool = False) -> list[Trace]:
        """The newest, newest first. Args: function: only those of this one; cold: only cold ones."""
        newest_first = (trace for trace in reversed(self._ring) if function in (None, trace.function))
        return list(islice((trace for trace in newest_first if trace.forked_ns or not cold), limit))

    def why(self, trace: Trace) -> str:
        """Why it was cold, as a sentence; empty: it was not."""
        return why_cold(trace, self._ring) if trace.forked_ns else ""


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
    if leased.started_ns:  # else it was warm, as nearly all
        trace.started_ns, trace.reserved_ns = leased.started_ns, leased.reserved_ns
        trace.forked_ns, trace.ready_ns = leased.forked_ns, leased.ready_ns
        trace.run = leased.beside.run if leased.beside is not None else None
        trace.why, trace.passed_over = invocation.why, leased.passed_over
        if leased.node is not None:
            trace.init_started_ns = leased.sandbox.init_started_ns
            trace.imported = imported_packages(leased.sandbox.imports or ())
    return trace


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
