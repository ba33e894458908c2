"""An invocation as OpenTelemetry's spans: one of the server's, and below it what happened, at its real times.

Pure. What is in a span is named after the semantic conventions for FaaS where they have a name for it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState
from opentelemetry.util.types import Attributes

from sockd.base.telemetry import COLD
from sockd.observe import trace_spans
from sockd.observe.otlp.wire import Finished
from sockd.observe.traces import Trace
from sockd_initscripts import wire
from sockd_initscripts.report import RunReport

SCOPE = InstrumentationScope("sockd")


def spans_of(finished: Finished, resource: Resource, epoch_ns: int) -> Sequence[ReadableSpan]:
    """The spans of one invocation, the server's first.

    Args: epoch_ns: Unix time at the zero of CLOCK_MONOTONIC."""
    trace = finished.trace
    span = trace.span
    assert span is not None
    trace_id, state = int.from_bytes(span.trace_id), TraceState.from_header([span.state] if span.state else [])

    def context(span_id: bytes, is_remote: bool = False) -> SpanContext:
        return SpanContext(trace_id, int.from_bytes(span_id), is_remote, TraceFlags(TraceFlags.SAMPLED), state)

    server = context(span.span_id)
    failed = trace.error_type
    spans = [
        ReadableSpan(
            trace.function,
            server,
            context(span.parent_id, is_remote=True) if span.parent_id else None,
            resource,
            attributes_of(trace),
            kind=SpanKind.SERVER,
            instrumentation_scope=SCOPE,
            status=Status(StatusCode.ERROR, failed) if failed else Status(),
            start_time=trace.arrived_ns + epoch_ns,
            end_time=trace.answered_ns + epoch_ns,
        )
    ]
    for part in parts_of(trace, report_of(finished)):
        attributes: Attributes = {"sockd.track": part.track, **({"sockd.detail": part.detail} if part.detail else {})}
        spans.append(
            ReadableSpan(
                part.name,
                context(os.urandom(8)),
                server,
                resource,
                attributes,
                kind=SpanKind.CLIENT if part.track == "rpc" else SpanKind.INTERNAL,
                instrumentation_scope=SCOPE,
                status=Status(),
                start_time=part.start_ns + epoch_ns,
                end_time=part.end_ns + epoch_ns,
            )
        )
    return spans


def attributes_of(trace: Trace) -> Attributes:
    """Return the attributes of the server's span."""
    attributes: dict[str, str | bool] = {
        "faas.name": trace.function,
        "faas.version": trace.version,
        "faas.coldstart": trace.origin in COLD,
        "faas.invocation_id": str(uuid.UUID(bytes=trace.request_id)),
        "faas.trigger": trace.trigger,
        "faas.instance": trace.sandbox_id,
        "sockd.origin": trace.origin,
        "error.type": trace.error_type,
    }
    return {name: value for name, value in attributes.items() if value != ""}


def parts_of(trace: Trace, report: RunReport | None) -> Iterator[trace_spans.Span]:
    """What happened in it, as `sockd trace` shows it; what took no time is left out."""
    if not trace.sandbox_id:
        return  # there was none: it waited, or was refused
    parts = [*trace_spans.daemon_spans(trace), *trace_spans.phases_of(trace)]
    if report is not None:
        parts += [
            *trace_spans.script_spans(report),
            *trace_spans.rpc_spans(report),
            *trace_spans.reads_of(trace, report),
        ]
    seen = set()
    for part in parts:
        if part.end_ns > part.start_ns and (part.track, part.name) not in seen:
            if part.track == "daemon":
                seen.add((part.track, part.name))  # the queue and the thaw are both the daemon's work and a phase
            yield part


def report_of(finished: Finished) -> RunReport | None:
    """The engine's report of the initscript's run."""
    if not finished.encoded:
        return None
    message, _ = wire.decode_to_daemon(finished.encoded, 0)
    return message.report if isinstance(message, wire.Done) else None
