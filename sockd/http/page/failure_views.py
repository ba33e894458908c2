"""Failures as the values of a template: groups by function, type and line, each with the traceback and log of its newest failure.

Pure but for reading the worker. Bounded: a page has so many groups, and so many bytes of each one's log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from sockd.base.errors import NoSuchFunction
from sockd.base.telemetry import LogRecord
from sockd.http.page import trace_view, words
from sockd.http.page.function_views import log_row
from sockd.http.page.views import Values, failure_group_row, unix_s
from sockd.http.worker import Worker
from sockd.observe.failure_groups import FailureKey, failure_key

MAX_GROUPS = 50
MAX_TRACES = 500
"""Single failures that are looked through for those of the groups."""
MAX_LINKS = 8
"""Single failures that a group names."""
MAX_LOG_BYTES = 8 << 10
MAX_RECORDS = 500
"""The most records of each function; the log of an older failure is on the page of its trace."""


def failures_page(worker: Worker, function: str | None) -> Values:
    """The groups of failures of one function, or of all, the one that failed last first."""
    groups = worker.traces.failure_groups(MAX_GROUPS, function)
    traces = by_group(worker.traces.last(MAX_TRACES, function, "failed"))
    logs = {name: newest_logs(worker, name) for name in {group.key.function for group in groups}}
    return {
        "function": function,
        "groups": [
            {**failure_group_row(group), **newest(traces.get(group.key, ()), logs[group.key.function])}
            for group in groups
        ],
        "most": MAX_GROUPS,
        "since": words.when(worker.numbers.started_s),
    }


def by_group(traces: Sequence[Mapping[str, Any]]) -> Mapping[FailureKey, Sequence[Mapping[str, Any]]]:
    """The single failures that are remembered, by their group, each newest first."""
    found: dict[FailureKey, list[Mapping[str, Any]]] = {}
    for trace in traces:
        found.setdefault(failure_key(trace["function"], trace["outcome"], trace["stack"]), []).append(trace)
    return found


def newest(traces: Sequence[Mapping[str, Any]], logs: Mapping[str, LogRecord]) -> Values:
    """The single failures of a group, with what is known of the newest. Args: traces: those that are remembered."""
    record = logs.get(traces[0]["request_id"]) if traces else None
    return {
        "error": trace_view.error(traces[0]) if traces else "",
        "log": log_row(record, MAX_LOG_BYTES)["text"] if record is not None else "",
        "remembered": [link(trace) for trace in traces[:MAX_LINKS]],
    }


def link(trace: Mapping[str, Any]) -> Values:
    """One failure, as a link to its page."""
    at_s = unix_s(trace["arrived_ns"])
    return {"id": trace["request_id"], "clock": words.when(at_s), "stamp": words.stamp(at_s)}


def newest_logs(worker: Worker, function: str) -> Mapping[str, LogRecord]:
    """The newest logs of a function by request id, in one pass: a search for each failure would look through all logs."""
    with contextlib.suppress(NoSuchFunction):  # removed since
        return {record.request_id: record for record in worker.logs.tail(function, request_id=None, limit=MAX_RECORDS)}
    return {}


def log_of(worker: Worker, function: str, request_id: str) -> str:
    """What an invocation printed, as far as it is in memory; empty: nothing."""
    with contextlib.suppress(NoSuchFunction):  # removed since
        records = worker.logs.tail(function, request_id=request_id, limit=1)
        return "".join(log_row(record, MAX_LOG_BYTES)["text"] for record in records)
    return ""
