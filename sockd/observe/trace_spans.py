"""Spans: a trace as people and tools see it, on one time axis, with what was hidden and what the answer waited for.

Pure. Times are ns of CLOCK_MONOTONIC, which daemon, engine and sandbox share. What a sandbox says of its own moments is
a claim: it is pressed into the time between the request and its answer.

    daemon      queue · memory · fork, with network · prepare (or thaw) · answer
    sandbox     setup · init · exec
    initscript  start · boot, and the messages to the function
    rpc         one span for each, from send_rpc to its last byte
    reads       what the function read from its storage, and where it came from
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypedDict

import msgspec

from sockd.observe.traces import Trace
from sockd_initscripts.report import RunReport

Interval = tuple[int, int]
OK, CLIENT_LEFT = "ok", "client left"
REGION = "region"
"""Where the storage library says that a read came from, if its initscript had made it."""
NO_FAILURES = (OK, CLIENT_LEFT)
"""Outcomes that are no error's type. An error counts more than a client that left."""


class Span(NamedTuple):
    """Something that took a while."""

    track: str
    name: str
    start_ns: int
    end_ns: int
    detail: str = ""


class Step(TypedDict):
    """A piece of the critical path: while it lasted, the answer waited for it."""

    name: str
    ns: int


def summary(trace: Trace) -> dict[str, Any]:
    """A trace without its spans."""
    ending = trace.run.ending if trace.run is not None else None
    return {
        "request_id": str(uuid.UUID(bytes=trace.request_id)),
        "trace_id": trace.span.trace_id.hex() if trace.span is not None else None,
        "function": trace.function,
        "version": trace.version,
        "origin": trace.origin,
        "sandbox": trace.sandbox_id,
        "node": trace.node,
        "outcome": trace.error_type or (CLIENT_LEFT if trace.client_left else OK),
        "arrived_ns": trace.arrived_ns,
        "answered_ns": trace.answered_ns,
        "initscript": None if trace.run is None else ending.outcome if ending is not None else "running",
        "times": msgspec.structs.asdict(trace.times),
        "error": trace.message,
        "stack": list(trace.stack),
    }


def describe(trace: Trace, why: str = "") -> dict[str, Any]:
    """A trace with its spans, JSON-able. Args: why: why it was cold."""
    report = trace.run.report() if trace.run is not None else None
    phases = phases_of(trace)
    reads = reads_of(trace, report)
    spans = [*daemon_spans(trace), *(span for span in phases if span.track == "sandbox")]
    if report is not None:
        spans += [*script_spans(report), *rpc_spans(report), *reads]
    fetched = [(span.start_ns, span.end_ns) for span in spans if span.track == "rpc"]
    return {
        **summary(trace),
        "spans": [span._asdict() for span in spans],
        "rpcs": msgspec.to_builtins(report.rpcs) if report is not None else [],
        "fetched_ns": length(union(within(fetched, (trace.arrived_ns, trace.answered_ns)))),
        "hidden_ns": hidden_ns(trace, fetched, [(read.start_ns, read.end_ns) for read in reads]),
        "critical": critical_path(phases, reads),
        "why": why,
        "zygote": zygote_words(trace.node) if trace.forked_ns else "",
        "passed_over": trace.passed_over,
        "waited_for": trace.waited_for,
        "imported": [msgspec.structs.asdict(each) for each in trace.imported],
        "replies": replies_of(report),
        "log": report.log if report is not None else "",
        "cut": report.cut if report is not None else False,
    }


def daemon_spans(trace: Trace) -> list[Span]:
    """What the daemon did itself."""
    spans = [Span("daemon", "queue", trace.arrived_ns, trace.arrived_ns + trace.times.queue, trace.waited_for)]
    if trace.forked_ns:
        spans += [
            Span("daemon", "memory", trace.started_ns, trace.reserved_ns),
            Span("daemon", "fork", trace.reserved_ns, trace.forked_ns, zygote_words(trace.node)),
            Span("daemon", "prepare", trace.forked_ns, trace.ready_ns),
        ]
        if trace.network:
            spans.append(Span("daemon", "network", *trace.network_ns, trace.network))
    elif trace.started_ns:
        spans.append(Span("daemon", "thaw", trace.started_ns, trace.ready_ns))
    return spans


def zygote_words(node: str) -> str:
    """A Zygote by the first of its packages; `node` is their keys, name-version-digest."""
    names = [key.rsplit("-", 2)[0] for key in node.split(",") if key]
    if not names:
        return "root Zygote"
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def phases_of(trace: Trace) -> list[Span]:
    """What the answer went through, one after the other, without a gap: the time axis cut into phases."""
    moments = [("daemon", "queue", trace.arrived_ns + trace.times.queue)]
    if trace.forked_ns:
        moments.append(("sandbox", "setup", trace.init_started_ns or trace.ready_ns))
        if trace.times.init:
            moments.append(("sandbox", "init", trace.init_started_ns + trace.times.init))
    elif trace.started_ns:
        moments.append(("daemon", "thaw", trace.ready_ns))
    if trace.exec_started_ns:
        moments.append(("sandbox", "exec", trace.exec_started_ns + trace.times.exec))
        moments.append(("daemon", "answer", trace.answered_ns))
    else:
        moments.append(("sandbox", trace.error_type or "exec", trace.answered_ns))
    spans, at = [], trace.arrived_ns
    for track, name, end in moments:
        end = min(max(end, at), trace.answered_ns)
        spans.append(Span(track, name, at, end))
        at = end
    return spans


def script_spans(report: RunReport) -> list[Span]:
    """The run itself, and its messages as moments."""
    entered = report.started_ns or report.ended_ns
    detail = f"{report.outcome} {report.status} {report.message}".strip()
    spans = [Span("initscript", "start", report.arrived_ns, entered)]
    if report.started_ns:
        spans.append(Span("initscript", "boot", entered, max(report.ended_ns, entered), detail))
    spans += [
        Span("initscript", f"message {message.id}", message.sent_ns, message.sent_ns, f"{message.bytes} bytes")
        for message in report.messages
    ]
    return spans


def rpc_spans(report: RunReport) -> list[Span]:
    """One for each RPC, from the guest's call to the last byte; one that did not end ends with the run."""
    return [
        Span("rpc", " ".join(rpc.descriptor), rpc.queued_ns, max(rpc.done_ns or report.ended_ns, rpc.queued_ns), words)
        for rpc in report.rpcs
        for words in [rpc_words(rpc.status, rpc.bytes, rpc.connection, rpc.parts, rpc.reason)]
    ]


def rpc_words(status: int, size: int, connection: str, parts: int, reason: str) -> str:
    """What became of an RPC."""
    words = [f"failed: {reason or -status}"] if status < 0 else [str(status)] if status else []
    words += [f"{size} bytes"]
    if connection:
        words.append(f"{connection} connection")
    if parts > 1:
        words.append(f"{parts} parts")
    return ", ".join(words)


def reads_of(trace: Trace, report: RunReport | None) -> list[Span]:
    """What the function says it read, in the order of time."""
    if report is None:
        return []
    spans = []
    for read in sorted(report.reads, key=lambda read: read.start_ns):
        start = min(max(read.start_ns, trace.arrived_ns), trace.answered_ns)
        end = min(max(read.end_ns, start), trace.answered_ns)
        detail = f"{read.served}: {read.why}" if read.why else read.served
        spans.append(Span("reads", " ".join(read.rpc), start, end, detail))
    return spans


def replies_of(report: RunReport | None) -> dict[str, int]:
    """How many messages the script has sent, and how many reads of the function there were and came from the region."""
    reads = report.reads if report is not None else []
    return {
        "sent": len(report.messages) if report is not None else 0,
        "reads": len(reads),
        "used": sum(read.served == REGION for read in reads),
    }


def hidden_ns(trace: Trace, fetched: Iterable[Interval], waited: Iterable[Interval]) -> int:
    """The time in which something was being fetched and the function did not wait for any of its reads."""
    busy = union(within(fetched, (trace.arrived_ns, trace.answered_ns)))
    return length(busy) - length(intersection(busy, union(waited)))


def critical_path(phases: Sequence[Span], reads: Sequence[Span]) -> list[Step]:
    """What the answer waited for, piece by piece: the phases, but for the reads in them that the function waited for."""
    steps: list[Step] = []

    def add(name: str, ns: int) -> None:
        if steps and steps[-1]["name"] == name:
            steps[-1]["ns"] += ns
        elif ns > 0:
            steps.append({"name": name, "ns": ns})

    for phase in phases:
        at = phase.start_ns
        for read in reads:
            start, end = max(read.start_ns, at), min(read.end_ns, phase.end_ns)
            if start < end and phase.track == "sandbox":
                add(phase.name, start - at)
                add(f"read {read.name} ({read.detail})", end - start)
                at = end
        add(phase.name, phase.end_ns - at)
    return steps


# -- intervals


def within(intervals: Iterable[Interval], bounds: Interval) -> list[Interval]:
    """The parts of them that lie in the bounds."""
    cut = [(max(start, bounds[0]), min(end, bounds[1])) for start, end in intervals]
    return [(start, end) for start, end in cut if start < end]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time, in intervals that neither touch nor overlap, sorted."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def intersection(one: Sequence[Interval], other: Sequence[Interval]) -> list[Interval]:
    """The time that is in both; each is a union."""
    return union(part for bounds in other for part in within(one, bounds))


def length(intervals: Iterable[Interval]) -> int:
    """How long they are together."""
    return sum(end - start for start, end in intervals)
